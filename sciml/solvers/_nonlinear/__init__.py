"""Root finding, least squares and minimisation: what lies behind the front functions."""
