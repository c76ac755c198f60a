-- What controllers in clusters logged of what is wanted there, such as flux configurations: the newest lines of each.
CREATE TABLE log_lines (
    cluster_key {text} NOT NULL,
    -- Rises with every line of the cluster.
    number BIGINT NOT NULL,
    resource_key {text} NOT NULL,
    line {text} NOT NULL,
    PRIMARY KEY (cluster_key, number)
);
CREATE INDEX log_lines_by_resource ON log_lines (resource_key, number);
-- The number of the newest line of a cluster, and up to where each of its sources was read.
CREATE TABLE log_positions (
    cluster_key {text} NOT NULL PRIMARY KEY,
    last_number BIGINT NOT NULL,
    positions {text} NOT NULL
);
