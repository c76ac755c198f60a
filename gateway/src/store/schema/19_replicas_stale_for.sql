-- How long a replica goes on once its lease has ended, and the start of it that said so: a program that does not know these
-- columns leaves what an earlier start of the same name said.
ALTER TABLE replicas ADD COLUMN stale_ms BIGINT;
ALTER TABLE replicas ADD COLUMN stale_of BIGINT;
