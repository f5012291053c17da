"""Every SQL statement, and the schema. No rule is decided here.

In `database/`: `conn` and `pool` are the sessions, `notifications` the hints between replicas,
`migrator` the schema (`migrations/`). A change of a chat goes through `chat/`: `transactor` loads
and decides, `change_writer` and `apply` write it in one statement. Every function on rows of users
takes the actor; `database/row_access` has the conditions.
"""
