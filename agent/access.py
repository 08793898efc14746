"""The agent's access to the API server: by flags, otherwise by the account of its pod."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agent.config import USER_AGENT
from agent.errors import AgentError

if TYPE_CHECKING:
    from agent.config import AgentConfig
    from apiserver.access import Access
    from apiserver.client import Api


def open_api(config: AgentConfig) -> Api:
    """Return a client; raise AgentError if no API server is configured."""
    from apiserver.client import Api

    return Api(api_access(config), USER_AGENT)


def api_access(config: AgentConfig) -> Access:
    """Return URL and credentials of the API server; raise AgentError if unknown."""
    from apiserver.access import Access
    from apiserver.errors import APIError

    if config.api is None:
        try:
            return Access.in_cluster(os.environ)
        except APIError as error:
            raise AgentError(f"{error}: name an API server with --api-server, or --pods-dir") from error
    return Access(config.api.url, config.api.ca_file, config.api.token_file)
