"""What all tests share."""

pytest_plugins = ["tests.servers.fixture", "tests.agent.containerd_fixture"]
