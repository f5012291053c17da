"""Where files are kept, as the settings say."""

from chatd.settings.schema import FileSettings, SettingsError
from chatd.store.file.s3_signature import S3Credentials
from chatd.store.file.s3_store import S3Config
from chatd.store.file.stores import FileStoreConfig


def file_store_config(settings: FileSettings) -> FileStoreConfig:
    """Raises SettingsError if only a part of what S3 needs is set."""
    needed = {
        "files.s3_endpoint": settings.s3_endpoint,
        "files.s3_bucket": settings.s3_bucket,
        "files.s3_access_key_id": settings.s3_access_key_id,
        "files.s3_secret_access_key": settings.s3_secret_access_key,
    }
    missing = [name for name, value in needed.items() if not value]
    if missing and (settings.store == "s3" or len(missing) < len(needed)):
        raise SettingsError(f"{', '.join(missing)}: must be set to keep files in S3")
    if missing:
        return FileStoreConfig()
    s3 = S3Config(
        endpoint=settings.s3_endpoint or "",
        bucket=settings.s3_bucket or "",
        prefix=settings.s3_prefix,
        credentials=S3Credentials(
            region=settings.s3_region,
            access_key_id=settings.s3_access_key_id or "",
            secret_access_key=settings.s3_secret_access_key or "",
        ),
    )
    return FileStoreConfig(s3=s3, uses_s3=settings.store == "s3")
