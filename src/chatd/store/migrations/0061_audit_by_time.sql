-- outside a transaction
-- The log is read newest first in a range of time: all of it, of a user, of a type of objects, of one
-- object. These replace the indexes that end in the id alone.
CREATE INDEX CONCURRENTLY IF NOT EXISTS audit_log_by_time ON audit_log (at, id);
CREATE INDEX CONCURRENTLY IF NOT EXISTS audit_log_of_actor ON audit_log (actor_id, at, id);
CREATE INDEX CONCURRENTLY IF NOT EXISTS audit_log_of_type ON audit_log (object_type, at, id);
CREATE INDEX CONCURRENTLY IF NOT EXISTS audit_log_of_object
    ON audit_log (object_type, object_id, at, id);
DROP INDEX CONCURRENTLY IF EXISTS audit_log_by_actor;
DROP INDEX CONCURRENTLY IF EXISTS audit_log_by_object;
