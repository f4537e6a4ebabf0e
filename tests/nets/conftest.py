import jaxtyping
import pytest


@pytest.fixture
def unchecked():
    """Switches the checks of types off, as they are for users: what is refused is refused by us."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
