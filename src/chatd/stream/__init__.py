"""What viewers see of chats: committed events by version, live parts before their commit.

Here: `feed_registry` > `chat_feed`, and `chat_list` > `share_watch`. `episodes` holds the live
parts of running steps; `journal_writer` and `journal_tail` carry them to other replicas. `fanout`
broadcasts and drops viewers that are too slow.
"""
