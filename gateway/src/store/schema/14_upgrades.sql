-- What events have told last of the version of a cluster's agents, and of an upgrade of them: its version and its state.
ALTER TABLE agents ADD COLUMN told_version {text};
ALTER TABLE agents ADD COLUMN told_upgrade {text};
-- What an event says beside statuses: JSON.
ALTER TABLE events ADD COLUMN detail {text};
-- What operators have said of upgrades of the fleet's agents: one row, JSON.
CREATE TABLE upgrades (
    place BIGINT NOT NULL PRIMARY KEY,
    state {text} NOT NULL
);
