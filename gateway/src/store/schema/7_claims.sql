-- Who claims a Kubernetes cluster for a resource: the resource group, and who created the resource. Nobody proves the UID of
-- their namespace kube-system, so that one claimant's resource is in the way of no other's. Null: a holder of an enrolment
-- token, who is nobody in particular.
ALTER TABLE agents ADD COLUMN claimant {text};
DROP INDEX agents_by_uid;
CREATE INDEX agents_by_uid ON agents (kube_system_uid);
CREATE UNIQUE INDEX agents_by_claim ON agents (kube_system_uid, claimant);
