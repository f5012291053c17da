"""Slack: threads that are chats.

`slack_socket` receives and stores events, `slack_worker` acts upon them, `slack_threads` shows what
the chats do, `slack_api` is Slack's Web API, `connections` what administrators and users do.
"""
