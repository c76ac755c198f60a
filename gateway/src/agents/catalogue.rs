//! The catalogue of extensions (`GET /v1/catalogue`) and its charts (`GET /v1/catalogue/chart?sha256=`; docs/features.md
//! E2). Who asks verifies both by keys that it pinned; nothing here vouches for them.

use std::sync::Arc;

use ::catalogue::{CHART_FOLDER, digest::Sha256};
use http::{StatusCode, header};
use types::agent_api::codes;

use super::{Agent, Call, Reply, busy};
use crate::{
    api_error::ApiError,
    catalogue::{CHARTS, CHARTS_OF_CLUSTER, Catalogue, ChartError},
};

/// The index with its signatures. `?known=<sha256 of index.json>`: 204 if it is still that one.
pub async fn index(call: &Call) -> Result<Reply, ApiError> {
    let edition = catalogue(call)?.newest().await.ok_or_else(unusable)?;
    if call.parameter("known").is_some_and(|known| known.parse() == Ok(edition.digest)) {
        return Ok(Reply::empty());
    }
    Ok(Reply::bytes("application/json", edition.answer.clone()))
}

/// The bytes of a chart.
pub async fn chart(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let catalogue = catalogue(call)?;
    let digest = call.parameter("sha256").unwrap_or_default().parse::<Sha256>().map_err(|error| {
        let message = format!("The query parameter 'sha256' is not valid: {error}.");
        ApiError::bad_request("InvalidQueryParameterValue", message).at("sha256")
    })?;
    let chart = catalogue.chart(&agent.cluster.id, digest).await.map_err(|error| match error {
        ChartError::Unknown => {
            let message = format!(
                "The catalogue of this gateway names no chart with the digest {digest}; ask for the index again."
            );
            ApiError::of(StatusCode::NOT_FOUND, "ChartNotFound", message)
        }
        ChartError::Busy => busy(&format!("As many charts as this subscription's share of {CHARTS}")),
        ChartError::BusyCluster => busy(&format!("{CHARTS_OF_CLUSTER} charts of this cluster")),
        ChartError::File { ref name, told, .. } => {
            let message = format!(
                "The file {CHART_FOLDER}/{name} of this gateway's catalogue {told}; who runs the gateway copies the charts that the index names into its folder."
            );
            let refused = ApiError::of(StatusCode::SERVICE_UNAVAILABLE, codes::CHART_UNAVAILABLE, message);
            ApiError { log: Some(error.to_string()), ..refused }.with(header::RETRY_AFTER, "30")
        }
    })?;
    Ok(Reply::live("application/gzip", chart))
}

fn catalogue(call: &Call) -> Result<&Arc<Catalogue>, ApiError> {
    call.control.catalogue.as_ref().ok_or_else(|| {
        let message = "This gateway has no catalogue of extensions; set catalogue_dir in [api] of its configuration.";
        ApiError::of(StatusCode::NOT_FOUND, codes::NO_CATALOGUE, message)
    })
}

fn unusable() -> ApiError {
    let message = "The gateway's catalogue of extensions cannot be used now; the gateway's log says why.";
    ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "CatalogueUnavailable", message).with(header::RETRY_AFTER, "30")
}
