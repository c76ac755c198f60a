-- Names that one of several gateways holds for a time: work that one does at a time, and challenges that were used.
CREATE TABLE held (
    name {text} NOT NULL PRIMARY KEY,
    -- A process, or whoever used a challenge: random.
    holder {text} NOT NULL,
    -- When another may hold it, by the database's clock.
    ends_ms BIGINT NOT NULL
);
CREATE INDEX held_by_end ON held (ends_ms);
