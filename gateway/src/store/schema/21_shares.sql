-- How many operations began at a resource group or a subscription, by the hour (of the time since 1970): a bound of a
-- day is judged by two dozen rows, however many operations are kept.
CREATE TABLE operations_begun (
    place_key  {text} NOT NULL,
    since_hour BIGINT NOT NULL,
    begun      BIGINT NOT NULL,
    PRIMARY KEY (place_key, since_hour)
);
CREATE INDEX operations_begun_by_hour ON operations_begun (since_hour);

-- The subscription of an event's cluster. Events of programs that do not know this column get it when the next one is
-- told.
ALTER TABLE events ADD COLUMN subscription_key {text} NOT NULL DEFAULT '';
CREATE INDEX events_by_subscription ON events (subscription_key, number);

-- Events that are kept of each, and the number up to which some of its events may have been forgotten. A resource group
-- has a row while it has events, a subscription from its first event on.
CREATE TABLE event_groups (
    group_key {text} NOT NULL PRIMARY KEY,
    kept      BIGINT NOT NULL,
    forgotten BIGINT NOT NULL
);
CREATE TABLE event_subscriptions (
    subscription_key {text} NOT NULL PRIMARY KEY,
    kept             BIGINT NOT NULL,
    forgotten        BIGINT NOT NULL
);
