"""Every SQL statement, and the schema. No rule is decided here.

`conn` and `pool` are the sessions, `notifications` the hints between replicas, `migrator` the
schema (`migrations/0001_schema.sql`). A change of a chat goes through `chat/`: `transactor` loads
and decides, `change_writer` and `apply` write it in one statement. Every function on rows of users
takes the actor; `row_access` has the conditions.
"""
