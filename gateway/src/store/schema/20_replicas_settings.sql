-- Keyed hashes of the settings that all replicas share, as JSON by group, and the start of the replica that wrote them: a
-- program that does not know these columns leaves what an earlier start of the same name wrote.
ALTER TABLE replicas ADD COLUMN settings {text};
ALTER TABLE replicas ADD COLUMN settings_of BIGINT;
