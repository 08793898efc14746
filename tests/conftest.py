"""What all tests share."""

from hypothesis import settings

pytest_plugins = ["tests.servers.fixture", "tests.agent.containerd_fixture"]

settings.register_profile("corepin", settings.default, deadline=None)  # a busy machine makes any example slow
settings.load_profile("corepin")
