-- Of one operation one process is in charge, until the claim ends; then any other goes on with it.
-- What is to be done, in a word: a program asks for what it knows, and leaves the work of a newer one alone. Programs from
-- before this column have nothing else under way than deletions.
ALTER TABLE operations ADD COLUMN work_kind {text} NOT NULL DEFAULT 'delete';
-- When it is to be looked at again: the end of the claim, or of a rest.
ALTER TABLE operations ADD COLUMN next_ms BIGINT NOT NULL DEFAULT 0;
-- Which process has it.
ALTER TABLE operations ADD COLUMN claimed_by {text};
-- How often it was tried since something last came of it.
ALTER TABLE operations ADD COLUMN tries BIGINT NOT NULL DEFAULT 0;
-- When it has failed if it has not ended; none: it waits for nobody else.
ALTER TABLE operations ADD COLUMN due_ms BIGINT;
CREATE INDEX operations_by_work ON operations (status, work_kind, next_ms, operation_id);
