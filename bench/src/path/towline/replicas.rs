//! Three gateways on one PostgreSQL database, with the agents of a fleet. Each agent has tunnels to two of the three.
//! Users reach two of the gateways; the first one is the scenario's to kill.

use std::path::PathBuf;

use anyhow::Context;
use toml::{Table, Value};
use types::ids::ClusterId;

use super::{
    Also, Begun, Bench, CLUSTER, Kind, Running, agent, fleet, has_all,
    hop::{Database, config_file, gateway, one_tunnel},
    text, token,
};
use crate::{audit::Audit, scene::Crowd};

/// Names of the gateways. The first one is killed.
pub const NAMES: [&str; 3] = ["first", "second", "third"];
/// Whom `towline dev` lets in at its own clusters.
const USER: &str = "admin";

/// Starts the database, the gateways, and the agent of the cluster that is warmed; those of the fleet are the scenario's
/// to start.
pub async fn start(bench: &Bench, kind: Kind, agents: u32) -> anyhow::Result<Running> {
    // It makes certificates, users and the configuration.
    let made = Begun::new(bench, kind, Crowd::Replicas(agents)).await?;
    let (url, own) = (made.url(CLUSTER)?, made.cluster(CLUSTER)?.clone());
    let carrier = made.carrier;
    made.gateway.stop().await;
    let (state, ready) = (made.state, made.ready);
    fleet::keep_authority(bench, &state)?;
    let file = state.join("gateway.toml");
    let config = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let config = shared(fleet::config(config.parse()?, agents)?, &text(&own, "id")?.parse()?)?;
    std::fs::write(&file, config.to_string())?;
    let database = Database::start(bench, &state).await?;

    let doors = [bench.door(kind), bench.door_beside(kind, 1), bench.door_beside(kind, 2)];
    let (killed, _) = gateway(bench, &state, NAMES[0], &doors[0]).await?;
    let (second, admin) = gateway(bench, &state, NAMES[1], &doors[1]).await?;
    let (third, _) = gateway(bench, &state, NAMES[2], &doors[2]).await?;
    let config = one_tunnel(&PathBuf::from(text(&own, "agent_config")?), &doors[1])?;
    let agent = agent(bench, carrier, &config, &bench.synthetic, "agent-replicas")?;
    let token = Some(token(bench, &state, CLUSTER).await?);
    let [first, others @ ..] = doors.each_ref().map(|door| format!("https://{door}"));
    let plan = fleet::plan(bench, &state, first, carrier, agents);
    let plan = crate::agents::Plan { others: others.into(), ..plan };
    let fleet = Some(fleet::Fleet::new(killed, plan, config_file(&state, NAMES[0])));
    let also = Also { fleet, audit: Some(Audit::new(&admin)), database: Some(database), ..Also::default() };
    let (ca, url) = (text(&ready, "ca")?.into(), url.replace(&doors[0], &doors[1]));
    Ok(Running { url, ca, name: None, token, hops: vec![second, third, agent], also, lacks: has_all })
}

/// One user reaches all clusters with one token, that of `cluster`.
fn shared(mut config: Table, cluster: &ClusterId) -> anyhow::Result<Table> {
    let issuers = config.get_mut("issuers").and_then(Value::as_array_mut).context("no issuers")?;
    let issuer = issuers.first_mut().and_then(Value::as_table_mut).context("no issuer")?;
    issuer.insert("audiences".to_owned(), vec![cluster.audience()].into());
    let grants = config.get_mut("grants").and_then(Value::as_array_mut).context("no grants")?;
    let all = [("cluster".to_owned(), "*".into()), ("users".to_owned(), vec![USER].into())];
    grants.push(Table::from_iter(all).into());
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_reaches_all_clusters_with_the_token_of_one() {
        let id: ClusterId =
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c".parse().unwrap();
        let made: Table = "[[issuers]]\nname = \"x\"\n[[grants]]\ncluster = \"c\"\n".parse().unwrap();
        let config = shared(made, &id).unwrap();
        assert_eq!(config["issuers"][0]["audiences"][0].as_str(), Some(id.audience().as_str()));
        assert_eq!(config["grants"][1].to_string().trim(), r#"{ cluster = "*", users = ["admin"] }"#);
        assert!(shared(Table::new(), &id).is_err());
    }
}
