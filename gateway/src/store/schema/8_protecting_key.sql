-- Which key of the key file sealed protected settings at the last start: another file beside this store is refused. At most
-- one row; none before the first start.
CREATE TABLE protecting_key (
    key_id {text} NOT NULL PRIMARY KEY
);
