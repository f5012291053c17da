"""Moved to `server`."""

from chatd.client.server import find_proxy, open_api, open_session

__all__ = ["find_proxy", "open_api", "open_session"]
