"""What a model may call: one struct for each tool gives its schema and its reader.

`tool` is what all share, `chat_tools` the list for a chat. The effects are in `agent`, reached by
`workspaces`.
"""
