-- What clusters tell of the parts of what is wanted in them, such as the objects that a flux configuration has applied.
CREATE TABLE parts (
    resource_key {text} NOT NULL,
    name {text} NOT NULL,
    -- Those that are shown first have the lowest.
    rank BIGINT NOT NULL,
    told {text} NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (resource_key, name)
);
CREATE INDEX parts_by_rank ON parts (resource_key, rank, name);
-- Which message about the parts of a resource was the last one, and how many and how large they are.
CREATE TABLE parts_told (
    resource_key {text} NOT NULL PRIMARY KEY,
    told_position BIGINT NOT NULL,
    parts BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
