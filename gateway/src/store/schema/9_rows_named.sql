-- That every row of agents has its principal and its claimant, as far as it can have them: no start looks for others again.
CREATE TABLE rows_named (
    at_start INTEGER NOT NULL PRIMARY KEY
);
