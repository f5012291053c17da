-- Apps of GitHub -----------------------------------------------------------------------------------------

-- A connection to repositories has a token, or an App of GitHub with its private key. The tokens that GitHub
-- gives to the App are in memory only.
ALTER TABLE repository_connections
    ALTER COLUMN token DROP NOT NULL,
    ALTER COLUMN token_key_id DROP NOT NULL,
    ADD COLUMN app_id text CHECK (app_id <> '' AND length(app_id) <= 64),
    ADD COLUMN private_key text,
    ADD COLUMN private_key_key_id text GENERATED ALWAYS AS (split_part(private_key, '.', 2)) STORED
        REFERENCES secret_keys (id),
    ADD CONSTRAINT a_connection_has_a_token_or_an_app CHECK (
        (token IS NULL) = (app_id IS NOT NULL) AND (app_id IS NULL) = (private_key IS NULL)),
    ADD CONSTRAINT only_github_has_apps CHECK (app_id IS NULL OR vendor = 'github');
CREATE INDEX repository_connections_private_key_sealed_by
    ON repository_connections (private_key_key_id, id);
