-- Files that users upload. A row exists only for a complete file, and never changes.
CREATE TABLE files (
    id          uuid PRIMARY KEY,
    owner_id    uuid NOT NULL,
    name        text,
    media_type  text NOT NULL,
    size_bytes  bigint NOT NULL,
    sha256      text NOT NULL,
    store       text NOT NULL,
    chunk_bytes integer NOT NULL,
    request_key text,
    created_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT files_have_bytes CHECK (size_bytes > 0 AND chunk_bytes > 0)
);
CREATE INDEX files_of_owner ON files (owner_id, created_at DESC, id DESC);
CREATE INDEX files_by_age ON files (created_at, id);
CREATE UNIQUE INDEX files_request ON files (request_key) WHERE request_key IS NOT NULL;

-- Bytes without a file: an upload in progress, one that broke off, or what a deleted file left.
-- Maintenance removes the bytes of old and of abandoned rows, then the row.
CREATE TABLE file_uploads (
    id          uuid PRIMARY KEY,
    owner_id    uuid NOT NULL,
    store       text NOT NULL,
    chunk_bytes integer NOT NULL,
    abandoned   boolean NOT NULL DEFAULT false,
    started_at  timestamptz NOT NULL DEFAULT now());
CREATE INDEX file_uploads_of_owner ON file_uploads (owner_id) WHERE NOT abandoned;
CREATE INDEX file_uploads_by_age ON file_uploads (started_at);

-- No reference to files: the first chunks are written before the file exists.
CREATE TABLE file_chunks (
    file_id uuid NOT NULL,
    number  integer NOT NULL,
    data    bytea NOT NULL,
    PRIMARY KEY (file_id, number));
-- Images and PDFs are compressed already.
ALTER TABLE file_chunks ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE file_totals (
    owner_id uuid PRIMARY KEY,
    files    bigint NOT NULL,
    bytes    bigint NOT NULL,

    CONSTRAINT file_totals_are_not_negative CHECK (files >= 0 AND bytes >= 0)
);

-- Which files the messages of a chat name, queued and deleted ones included. Written together with
-- the message. A file with a link cannot be deleted.
CREATE TABLE chat_files (
    chat_id   uuid NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    file_id   uuid NOT NULL REFERENCES files (id),
    linked_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chat_id, file_id));
CREATE INDEX chat_files_of_file ON chat_files (file_id);

-- Keys that all replicas share, such as the one that signs download links.
CREATE TABLE shared_keys (
    name       text PRIMARY KEY,
    secret     bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now());
