"""Sessions of the database and their pool, migrations, notifications between replicas, and the
conditions that every statement shares."""
