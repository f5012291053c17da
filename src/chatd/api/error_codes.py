"""All error codes of the API: the status of each, what it means and what the client can do.

A test finds every code that the source raises and looks for it here. The OpenAPI document and
`docs/api.md` list them.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class ErrorCode(Struct, frozen=True):
    status: int
    meaning: str
    remedy: str


_RETRY: Final = "Nothing was lost. Retry after the seconds in `Retry-After`."
_OPERATOR: Final = f"{_RETRY} If it lasts, the operator must act."
_READ: Final = "Get the object and decide again."
_AGENT: Final = "Start the workspace, or wait until its agent is connected."

ERROR_CODES: Final[Mapping[str, ErrorCode]] = {
    # Models and providers
    "invalid_options": ErrorCode(
        400,
        "An option is unknown to this kind of provider, or has a wrong value.",
        "Read `GET /model-options/schema`.",
    ),
    "effort_not_supported": ErrorCode(
        400,
        "The model takes no reasoning effort.",
        "Leave `reasoning_effort` out, or choose a model whose `capabilities.efforts` names it.",
    ),
    "managed_by_settings": ErrorCode(
        409,
        "A running server declares this model or provider in its settings or its environment.",
        "Change it there and restart that server, or choose another name.",
    ),
    "provider_in_use": ErrorCode(
        409, "Models use the provider.", "Delete them or give them another provider first."
    ),
    "provider_failed": ErrorCode(
        409, "The provider did not answer as expected.", "Read `message`; test the provider."
    ),
    "too_many_keys": ErrorCode(409, "The provider has 20 keys.", "Delete one first."),
    # MCP servers
    "mcp_oauth_failed": ErrorCode(
        409,
        "The authorization server of an MCP server did not answer as expected.",
        "Read `message`; an administrator corrects the configuration, or the user tries again.",
    ),
    "mcp_grant_refused": ErrorCode(
        409,
        "The authorization server of an MCP server refuses what the user granted.",
        "Connect to the server again.",
    ),
    "too_many_mcp_servers": ErrorCode(409, "There are 500 MCP servers.", "Delete one first."),
    # Runners
    "runner_connected": ErrorCode(
        409,
        "The runner is connected.",
        "Drain it and stop it on its machine, then remove it.",
    ),
    "runner_has_workspaces": ErrorCode(
        409,
        "The runner has workspaces.",
        "Delete them first, or connect the runner again.",
    ),
    "runner_not_connected": ErrorCode(
        409, "The runner for the workspace is not connected.", "Start it again."
    ),
    "too_many_runner_tokens": ErrorCode(
        409, "There are 500 tokens of runners.", "Revoke one first."
    ),
    # The request itself
    "bad_request": ErrorCode(400, "The request is not valid.", "Read `message`."),
    "invalid_input": ErrorCode(
        400,
        "A field or a parameter is missing, unknown or has a wrong value.",
        "`validations` names each of them; correct them.",
    ),
    "invalid_json": ErrorCode(400, "The body is not JSON.", "Send one JSON object, as UTF-8."),
    "invalid_cursor": ErrorCode(
        400,
        "The cursor does not belong to this list and these filters.",
        "Use `next_cursor` unchanged and keep the filters, or read the first page again.",
    ),
    "no_model": ErrorCode(400, "No default model is configured.", "Name a model."),
    "unauthorized": ErrorCode(
        401, "The token is missing or not valid.", "Send `Authorization: Bearer <token>`."
    ),
    "invalid_login": ErrorCode(
        401, "The username or the password is wrong.", "Check both; an administrator can reset it."
    ),
    "invalid_link": ErrorCode(
        401, "The sign-in link has already been used or is too old.", "Ask for a new link."
    ),
    "identity_refused": ErrorCode(
        401, "The server refuses the answer of the OpenID provider.", "Begin the sign-in again."
    ),
    "identity_not_allowed": ErrorCode(
        403, "The OpenID provider's user has no account here.", "Ask an administrator."
    ),
    "identity_provider_failed": ErrorCode(
        502, "The OpenID provider failed.", "Retry; if it lasts, the operator must act."
    ),
    "forbidden": ErrorCode(
        403,
        "The caller may see this, but its role does not allow the action.",
        "Ask an administrator.",
    ),
    "missing_scope": ErrorCode(
        403, "The token does not have the scope of this action.", "Use a token with the scope."
    ),
    "csrf_token_required": ErrorCode(
        403,
        "A request with the session's cookie lacks the header X-CSRF-Token.",
        "Send the `csrf_token` of `GET /auth/me`.",
    ),
    "cross_site_request": ErrorCode(
        403,
        "A page of another site sent the request with the session's cookie.",
        "The operator can add that site to `server.allowed_origins`.",
    ),
    "host_not_allowed": ErrorCode(
        403,
        "The server does not answer to this host name.",
        "The operator can set `server.url` or `server.allowed_hosts`.",
    ),
    "insecure_connection": ErrorCode(
        403, "A browser can sign in only over https or on the same machine.", "Use https."
    ),
    "not_found": ErrorCode(
        404, "There is no such object, or the caller may not see it.", "Check the id."
    ),
    "method_not_allowed": ErrorCode(
        405, "The path has no such method.", "Use one of those in the header `Allow`."
    ),
    "request_timeout": ErrorCode(408, "The body did not arrive in time.", "Send it again."),
    "too_large": ErrorCode(413, "The body is too large.", "Send less, in several messages."),
    # The state of a chat
    "conflict": ErrorCode(409, "The object's state does not allow this.", _READ),
    "invalid_state": ErrorCode(409, "The chat's state does not allow this.", _READ),
    "chat_archived": ErrorCode(409, "The chat is archived.", "Take it out of the archive first."),
    "chat_busy": ErrorCode(
        409,
        "The chat is busy: a message was sent with `reject`. Or a file is to be reverted while this"
        " chat or another in its workspace runs.",
        "Try it later.",
    ),
    "call_not_waiting": ErrorCode(
        409,
        "The tool call has already been answered, or the chat does not wait for it.",
        "Read the chat again; if the call is answered, do nothing.",
    ),
    "too_many_rules": ErrorCode(
        409,
        "The chat's tool policy is full.",
        "Approve the call without `always`, or remove rules of the chat.",
    ),
    "chat_exists": ErrorCode(409, "There is another chat with this id.", "Repeat the request."),
    "parent_archived": ErrorCode(
        409, "The parent chat is archived or deleted.", "Take the parent out of the archive first."
    ),
    "version_not_reachable": ErrorCode(
        409,
        "The version belongs to a version of an earlier message that is not shown.",
        "Choose that version first.",
    ),
    "not_a_root_chat": ErrorCode(
        409, "A subagent cannot be deleted or shared alone.", "Delete or share its root chat."
    ),
    "not_in_demo": ErrorCode(
        409,
        "A worker can be killed over the API only in the demo.",
        "Use a browser on the server's machine, as an administrator, with the demo model.",
    ),
    "no_demo_worker": ErrorCode(
        409, "No worker process of the demo runs.", "Start one: `POST /demo/worker`."
    ),
    "sharing_disabled": ErrorCode(
        403, "Sharing is disabled on this server.", "An administrator can enable it in `/settings`."
    ),
    "too_many_readers": ErrorCode(
        409, "A chat is shared with at most 100 users and groups.", "Share it with a group."
    ),
    "queued_message_gone": ErrorCode(
        409, "The message has left the queue.", "Read history; edit the message there."
    ),
    "nothing_to_compact": ErrorCode(
        409, "There is no answer since the last summary.", "Nothing: history is short."
    ),
    "too_many_pins": ErrorCode(409, "200 chats are pinned.", "Unpin one first."),
    "title_in_progress": ErrorCode(409, "A title of this chat is being generated.", "Wait for it."),
    "nothing_to_name": ErrorCode(409, "The chat has no text to name it by.", "Send a message."),
    "title_failed": ErrorCode(502, "No model gave a usable title.", "Retry, or set a title."),
    "usage_limit_exceeded": ErrorCode(
        409,
        "The spend limit is reached; nothing was written. `spent_micros`, `limit_micros` and"
        " `resets_at` say more.",
        "Wait until `resets_at`.",
    ),
    "idempotency_key_reused": ErrorCode(
        409,
        "The idempotency key was used for a different request.",
        "Use a new key for a new request.",
    ),
    "queue_full": ErrorCode(429, "The queue is full.", "Wait, or delete a queued message."),
    # Files
    "empty_file": ErrorCode(400, "The file is empty.", "Send the file's bytes as the body."),
    "broken_file": ErrorCode(
        400, "The content is not a complete file of its type.", "Check the file."
    ),
    "file_type_mismatch": ErrorCode(
        400, "The content is not of the declared type.", "Send the right `Content-Type`."
    ),
    "link_expired": ErrorCode(403, "The link has expired.", "Request a new one."),
    "link_invalid": ErrorCode(403, "The link is not valid for this file.", "Request a new one."),
    "file_in_use": ErrorCode(409, "A chat contains the file.", "Delete the chat."),
    "too_many_files": ErrorCode(
        409, "The messages of the chat name too many files.", "Start another chat."
    ),
    "file_quota_exceeded": ErrorCode(
        409, "The user's files would exceed the quota.", "Delete files that no chat needs."
    ),
    "upload_ended": ErrorCode(409, "The upload took too long and was removed.", "Send it again."),
    "unsupported_file_type": ErrorCode(
        415, "Files of this type are not supported.", "Send a file of a listed type."
    ),
    "range_not_satisfiable": ErrorCode(
        416, "The range is outside the file.", "Ask for a range within its size."
    ),
    "too_many_uploads": ErrorCode(
        429, "The caller has too many uploads at once.", "Wait until one has ended."
    ),
    "file_lost": ErrorCode(503, "The file's bytes are not in the store.", "Ask the operator."),
    "file_store_missing": ErrorCode(
        503, "The store of the file is not configured.", "Ask the operator."
    ),
    "file_store_down": ErrorCode(503, "The file store is not reachable.", "Retry in a moment."),
    "file_store_refused": ErrorCode(
        503, "The file store refuses this server.", "Ask the operator to check its keys."
    ),
    # Settings and users
    "version_conflict": ErrorCode(
        409, "The object has changed since the given version.", "Read it again and decide again."
    ),
    "nothing_to_confirm": ErrorCode(
        409,
        "There is no restore to confirm: none was made, or it is already confirmed.",
        "Do nothing.",
    ),
    "debug_forced": ErrorCode(
        409,
        "The deployment records the model calls of all chats: users have no choice.",
        "Ask an administrator.",
    ),
    "debug_off": ErrorCode(
        403, "This deployment does not record model calls.", "Ask an administrator to allow it."
    ),
    "too_many_skills": ErrorCode(
        409, "The user has as many skills as a user may have.", "Delete one first."
    ),
    "too_many_git_credentials": ErrorCode(
        409, "The user has tokens for as many git hosts as allowed.", "Delete one first."
    ),
    "too_many_host_credentials": ErrorCode(
        409, "There are as many credentials for hosts as allowed.", "Delete one first."
    ),
    "too_many_notes": ErrorCode(
        409, "There are as many notes as a user, or a project, may have.", "Remove one first."
    ),
    "note_kept": ErrorCode(409, "The proposed note is kept already.", "Delete it instead."),
    "memory_off": ErrorCode(
        403, "The settings of the server allow no notes.", "Ask an administrator."
    ),
    "too_many_projects": ErrorCode(
        409, "The user belongs to as many projects as a user may.", "Leave or delete one first."
    ),
    "too_many_members": ErrorCode(
        409, "The project has as many members as a project may have.", "Remove one first."
    ),
    "too_many_project_files": ErrorCode(
        409, "The project has as many files as a project may have.", "Remove one first."
    ),
    "file_name_taken": ErrorCode(
        409, "The project has another file with this name.", "Choose another name."
    ),
    "project_owner": ErrorCode(
        409, "The owner of a project stays its owner.", "Delete the project instead."
    ),
    "skill_exists": ErrorCode(
        409, "The user has another skill with this name.", "Choose another name."
    ),
    "too_many_schedules": ErrorCode(
        409, "The user has as many schedules as a user may have.", "Delete one first."
    ),
    "too_many_webhooks": ErrorCode(
        409, "The user has as many webhooks as a user may have.", "Delete one first."
    ),
    "too_many_hooks": ErrorCode(
        409,
        "The deployment or the template has as many hooks as allowed.",
        "Delete one first.",
    ),
    "too_many_repository_connections": ErrorCode(
        409, "There are 200 connections to repositories.", "Delete one first."
    ),
    "too_many_slack_connections": ErrorCode(
        409, "There are 200 connections to Slack.", "Delete one first."
    ),
    "slack_connection_exists": ErrorCode(
        409, "There is another connection to Slack with this name.", "Choose another name."
    ),
    "repository_connection_exists": ErrorCode(
        409, "There is another connection to repositories with this name.", "Choose another name."
    ),
    "signature_invalid": ErrorCode(
        403,
        "A delivery of a git host is not signed with the secret of its connection.",
        "Give the host's webhook the secret of the connection, or the connection another one.",
    ),
    "hook_exists": ErrorCode(
        409,
        "The deployment or the template has another hook with this name.",
        "Choose another name.",
    ),
    "too_many_subscriptions": ErrorCode(
        409, "The user has 20 browsers with notifications.", "Remove one first."
    ),
    "secret_key_missing": ErrorCode(
        409,
        "This server does not have the key that encrypts secrets.",
        "The operator copies the key file to this host; `message` says how.",
    ),
    "username_taken": ErrorCode(409, "Another user has this name.", "Choose another name."),
    "email_taken": ErrorCode(409, "Another user has this address.", "Use another address."),
    "service_account": ErrorCode(
        409,
        "A service account has no password and no sessions, and creates no tokens.",
        "Use a token that an administrator created.",
    ),
    "not_a_service_account": ErrorCode(
        403,
        "Administrators create tokens for service accounts only.",
        "Let the user create the token.",
    ),
    "user_suspended": ErrorCode(409, "The user is suspended.", "Activate the user first."),
    "wrong_password": ErrorCode(400, "The current password is wrong.", "Check it."),
    "last_administrator": ErrorCode(
        409,
        "The server would no longer have an active administrator.",
        "Make another user an administrator first.",
    ),
    # Workspaces and builds
    "workspaces_off": ErrorCode(
        409, "Workspaces are disabled on this server.", "Ask the operator."
    ),
    "workspace_deleted": ErrorCode(409, "The workspace is deleted.", "Create another one."),
    "workspace_changed": ErrorCode(
        409, "The chat got another workspace in the meantime.", "Retry."
    ),
    "name_taken": ErrorCode(409, "The name is in use.", "Choose another name."),
    "template_gone": ErrorCode(
        409, "The workspace's template no longer exists.", "Create a workspace from another one."
    ),
    "template_is_preset": ErrorCode(
        409,
        "The template is built in or comes from a settings file.",
        "Duplicate it, and change the copy.",
    ),
    "too_many_templates": ErrorCode(409, "There are 500 templates.", "Delete one first."),
    "too_many_template_versions": ErrorCode(
        409, "The template has 1,000 versions.", "Duplicate it and continue with the copy."
    ),
    "build_active": ErrorCode(
        409, "A build of the workspace is running.", "Wait for it, or cancel it."
    ),
    "build_ended": ErrorCode(409, "The build has ended.", "Nothing."),
    "nothing_to_do": ErrorCode(409, "The workspace is already in the requested state.", "Nothing."),
    "no_workspace": ErrorCode(409, "The chat has no workspace.", "Set its `workspace_id`."),
    "no_agent": ErrorCode(409, "The workspace does not run.", _AGENT),
    "agent_selection": ErrorCode(
        409, "The workspace has several agents and none is chosen.", "Change its template."
    ),
    "no_context": ErrorCode(409, "The agent has not read its context yet.", "Retry in a moment."),
    "agent_lost": ErrorCode(409, "The workspace agent does not answer.", _AGENT),
    "agent_refused": ErrorCode(409, "The workspace agent refused.", "Read `message`."),
    "agent_untrusted": ErrorCode(
        409, "The workspace agent could not prove that it is the right one.", "Restart it."
    ),
    "runner_disconnected": ErrorCode(
        409,
        "The machine of the workspace is not connected.",
        "The runner reconnects by itself: try again, or start it.",
    ),
    "agent_outdated": ErrorCode(
        409,
        "An older version of chatd started the workspace; its agent cannot do this.",
        "Stop the workspace and start it again.",
    ),
    "outside_workspace": ErrorCode(
        403, "The path leads out of the workspace's home directory.", "Name a path inside it."
    ),
    "file_changed": ErrorCode(
        409,
        "The file is not the one that was loaded. Nothing was saved.",
        "Load it again, and save with its new version.",
    ),
    "too_many_previews": ErrorCode(
        409,
        "The chat shares 20 previews with its readers.",
        "Stop sharing one first.",
    ),
    "not_an_answer": ErrorCode(
        409, "The chat shows no answer with this id.", "Rate a message of the role `assistant`."
    ),
    "public_links_off": ErrorCode(
        403,
        "Public links are disabled on this server.",
        "Ask an administrator to enable them in the settings.",
    ),
    "web_images_off": ErrorCode(
        403,
        "This server does not load images from the web.",
        "Open the address itself; the operator sets `files.web_images`.",
    ),
    "web_image_failed": ErrorCode(
        409,
        "The host of a web image is not public, did not answer, or did not send an image.",
        "Read `message`; open the address itself.",
    ),
    "too_many_public_links": ErrorCode(
        409, "The chat has 20 public links.", "Revoke one of them first."
    ),
    "previews_off": ErrorCode(
        409,
        "This server has no host names for previews.",
        "The operator sets `server.preview_host`; on the server's own machine use its loopback"
        " address.",
    ),
    "archive_too_large": ErrorCode(
        413, "The files are too many or too large for one archive.", "Copy directories one by one."
    ),
    "workspace_too_large": ErrorCode(
        409,
        "The files of the workspace are too large to copy with a chat.",
        "Delete files, or fork the chat without its workspace.",
    ),
    "workspace_not_copied": ErrorCode(
        409,
        "The workspace is a directory of its user's machine.",
        "Fork the chat without its workspace.",
    ),
    "bad_archive": ErrorCode(
        400, "This is not a tar archive, or it has names that are refused.", "Read `message`."
    ),
    "copies_busy": ErrorCode(
        429, "The workspace has too many copies of files under way.", "Try again later."
    ),
    "no_terminal": ErrorCode(
        409, "The workspace has no pseudoterminals.", "Use an isolation level with namespaces."
    ),
    "no_desktop": ErrorCode(
        409,
        "The workspace has no desktop, or it cannot be started.",
        "Use a template with a desktop; `message` says what is missing.",
    ),
    "desktop_taken": ErrorCode(
        409, "Another person has mouse and keyboard of the desktop.", "Wait for the person."
    ),
    "too_many_viewers": ErrorCode(409, "8 viewers watch the desktop.", "Close one first."),
    "not_running": ErrorCode(409, "The command has ended.", "Do nothing."),
    "not_reverted": ErrorCode(
        409, "The file cannot be put back, and was not changed.", "Read `message`."
    ),
    "no_such_terminal": ErrorCode(409, "The terminal is gone.", "Open another one."),
    "terminal_ended": ErrorCode(409, "The terminal's shell has ended.", "Open another one."),
    "too_many_terminals": ErrorCode(409, "The workspace has 8 terminals.", "Close one first."),
    "input_unread": ErrorCode(
        409, "The program in the terminal does not read its input.", "Interrupt it."
    ),
    # The server
    "rate_limited": ErrorCode(
        429, "Too many requests in a minute.", "Retry after the seconds in `Retry-After`."
    ),
    "too_many_streams": ErrorCode(
        429, "The caller has too many open streams.", "Close one, or use one WebSocket."
    ),
    "internal": ErrorCode(
        500, "The server failed; this is a bug.", "Report it; the server's log has the details."
    ),
    "going_away": ErrorCode(503, "The server is shutting down.", _RETRY),
    "unavailable": ErrorCode(503, "The database is not reachable.", _RETRY),
    "database_down": ErrorCode(503, "The database is not reachable.", _RETRY),
    "database_unreachable": ErrorCode(503, "There is no way to the database's host.", _RETRY),
    "database_starting": ErrorCode(503, "The database is starting or stopping.", _RETRY),
    "database_busy": ErrorCode(503, "The database is overloaded.", _RETRY),
    "database_timeout": ErrorCode(503, "The database did not answer in time.", _RETRY),
    "database_conflict": ErrorCode(503, "The database rolled the change back.", _RETRY),
    "database_closed": ErrorCode(503, "The server has closed its database.", _RETRY),
    "secret_unreadable": ErrorCode(
        409, "A stored secret cannot be read with the keys of this server.", "Ask the operator."
    ),
    "database_full": ErrorCode(503, "The database's disk is full.", _OPERATOR),
    "database_read_only": ErrorCode(503, "The database has become a standby.", _OPERATOR),
    "database_refused": ErrorCode(503, "The database refuses this server.", _OPERATOR),
}

CODES_OF_EVERY_ROUTE: Final = (
    *("invalid_input", "unauthorized", "forbidden", "missing_scope", "internal"),
    *("csrf_token_required", "cross_site_request", "host_not_allowed", "rate_limited"),
)
SIGN_IN_CODES: Final = ("invalid_login", "invalid_link", "insecure_connection")
IDENTITY_CODES: Final = (
    *("identity_refused", "identity_not_allowed", "identity_provider_failed"),
    *("insecure_connection", "secret_key_missing", "not_found"),
)
DATABASE_CODES: Final = tuple(
    code for code in ERROR_CODES if code == "unavailable" or code.startswith("database_")
)
BODY_CODES: Final = ("invalid_json", "request_timeout", "too_large")
AGENT_CODES: Final = (
    *("no_workspace", "no_agent", "agent_selection", "agent_lost", "agent_refused"),
    *("agent_untrusted", "runner_disconnected"),
)
BROWSE_CODES: Final = (*AGENT_CODES, "agent_outdated", "outside_workspace", "workspaces_off")
PORT_CODES: Final = (*AGENT_CODES, "agent_outdated", "workspaces_off")
ARCHIVE_CODES: Final = (*BROWSE_CODES, "archive_too_large", "copies_busy")
TERMINAL_CODES: Final = (
    *AGENT_CODES,
    *("agent_outdated", "workspaces_off", "no_terminal", "no_such_terminal", "terminal_ended"),
    *("too_many_terminals", "input_unread"),
)
"""Most of them are told by a frame `refused`: a browser does not show the reply to a handshake."""
DESKTOP_CODES: Final = (
    *AGENT_CODES,
    *("agent_outdated", "workspaces_off", "no_desktop", "desktop_taken", "too_many_viewers"),
)
UPLOAD_CODES: Final = (
    *("empty_file", "broken_file", "file_type_mismatch", "unsupported_file_type"),
    *("file_quota_exceeded", "upload_ended", "too_many_uploads", "file_store_missing"),
    *("file_store_down", "file_store_refused"),
)
FILE_STORE_CODES: Final = (
    *("file_lost", "file_store_missing", "file_store_down", "file_store_refused"),
)
CHAT_STATE_CODES: Final = ("invalid_state", "chat_archived")
