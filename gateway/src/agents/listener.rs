//! Exchanges at the public listener, below [`ENROLMENT_PREFIX`]: a cluster that has no certificate yet, or none that
//! still holds, asks for one. Nobody has proved anything here; places are bounded in all and by address.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use daemon::shares::network;
use http::{Request, Response};
use rustls::pki_types::CertificateDer;
use types::agent_api::{ENROLMENT_PREFIX, enrolment_paths};

use super::{Call, OF_VISITORS, Reply, Visitor, answered, busy, find, in_time, query, whole};
use crate::{
    admission::limit::ENROLMENTS_PER_ADDRESS, answers::Body, api_error::ApiError, aside, audit::Record,
    control::Control, core::Core,
};

/// Answers one request of somebody at an address, who showed these certificates. Never fails: every outcome is an
/// answer.
pub async fn serve<B>(
    core: &Arc<Core>,
    control: &Arc<Control>,
    peer: IpAddr,
    certificates: &[CertificateDer<'static>],
    request: Request<B>,
    record: &mut Record,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let path = request.uri().path().to_owned();
    let outcome = outcome(core, control, peer, certificates, request).await;
    if let Err(error) = &outcome {
        record.reason(&error.detail.code);
    }
    answered(outcome, &path)
}

async fn outcome<B>(
    core: &Arc<Core>,
    control: &Arc<Control>,
    peer: IpAddr,
    certificates: &[CertificateDer<'static>],
    request: Request<B>,
) -> Result<Reply, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let _place = core.admissions.enrolment(peer).ok_or_else(|| {
        busy(&format!("{ENROLMENTS_PER_ADDRESS} requests of your address, or as many as there may be,"))
    })?;
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().strip_prefix(ENROLMENT_PREFIX).unwrap_or_default();
    let route = find(OF_VISITORS, &parts.method, path)?;
    // Who asks for a certificate may prove what they are, and is counted where that is judged.
    if route.path != enrolment_paths::CERTIFICATE {
        core.agents.by_address(peer, route.path, route.rate)?;
    }
    let body = whole(body, route.body_bytes).await?;
    let call = Call { core: Arc::clone(core), control: Arc::clone(control), query: query(parts.uri.query()), body };
    let visitor = Visitor { peer, certificates: certificates.to_vec() };
    aside::by(&network(peer).to_string(), in_time((route.serve)(&call, &visitor))).await
}
