-- The destination that a key was given for: scheme, host and port of the provider's address, or
-- `vendor`. A key is sent to no other. A key with an empty one, which a replica of an older version
-- has written, must be given again.
ALTER TABLE provider_keys ADD COLUMN destination text NOT NULL DEFAULT '';

UPDATE provider_keys k SET destination = CASE
    WHEN p.base_url IS NULL OR p.base_url = '' THEN 'vendor'
    ELSE coalesce(regexp_replace(
        regexp_replace(lower(substring(p.base_url FROM '^[^/]+//[^/?#]+')), '^(https://.*):443$', '\1'),
        '^(http://.*):80$', '\1'), '')
    END
FROM providers p WHERE p.id = k.provider_id;
