-- What controllers in clusters logged of what is wanted there, such as flux configurations: the newest lines of each.
CREATE TABLE log_lines (
    cluster_key {text} NOT NULL,
    -- Rises with every line of the cluster.
    number BIGINT NOT NULL,
    resource_key {text} NOT NULL,
    -- How bad it is: 0 of those who look for a fault, 1 what was done, 2 what could not be done.
    level BIGINT NOT NULL,
    -- Bytes of the line.
    size BIGINT NOT NULL,
    line {text} NOT NULL,
    PRIMARY KEY (cluster_key, number)
);
CREATE INDEX log_lines_by_resource ON log_lines (resource_key, number, level, size);
-- The number of the newest line of a cluster, and up to where each of its sources was read.
CREATE TABLE log_positions (
    cluster_key {text} NOT NULL PRIMARY KEY,
    last_number BIGINT NOT NULL,
    positions {text} NOT NULL
);
