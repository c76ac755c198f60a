-- Which authority the certificate is of that a cluster's agents showed last (SHA-256 of its key): nobody can live on one
-- that is taken away. Null until their first heartbeat after this.
ALTER TABLE agents ADD COLUMN certificate_authority {text};
