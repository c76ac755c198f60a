//! The race between QUIC and TCP for one tunnel.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use daemon::TaskGroup;
use tunnel::{
    transport::{CarrierKind, TunnelHandle},
    wire::close::CloseCode,
};

use super::{
    choose::{Chooser, Network, Plan},
    connect::{Connect, ConnectError, NoTunnel},
};

/// Memory of what worked, shared by all who race.
pub type SharedChooser = Mutex<Chooser>;

/// What one race dials.
pub struct Attempt<'a> {
    /// The number of the gateway's address.
    pub endpoint: usize,
    /// The network that it is reached by.
    pub network: &'a Network,
    /// Replicas of the gateway that the agent has tunnels to already.
    pub held: Vec<Bytes>,
}

/// Runs `plan`: the first carrier that is up wins, the others are dropped. All errors if none is.
pub async fn race(
    connect: &Arc<dyn Connect>,
    chooser: &SharedChooser,
    tasks: &TaskGroup,
    Attempt { endpoint, network, held }: Attempt<'_>,
    plan: Plan,
) -> Result<TunnelHandle, NoTunnel> {
    let note = |change: &dyn Fn(&mut Chooser)| change(&mut chooser.lock().unwrap_or_else(PoisonError::into_inner));
    let mut errors = Vec::new();
    let dialling = {
        let connect = connect.clone();
        // A task of its own, because the loser of a race is dropped and must not stop in the middle of a select.
        move |carrier| {
            let (connect, held) = (connect.clone(), held.clone());
            tasks.spawn_task("dial", async move { connect.connect(endpoint, carrier, held).await })
        }
    };
    let mut quic = plan.quic.then(|| dialling(CarrierKind::Quic));
    let mut turn = plan.tcp.into_iter();
    let head_start = tokio::time::sleep(plan.head_start);
    tokio::pin!(head_start);
    let mut waiting = quic.is_some();
    let mut tcp = None;
    loop {
        if tcp.is_none() && (!waiting || quic.is_none()) {
            tcp = turn.next().map(|carrier| (carrier, dialling(carrier)));
        }
        if tcp.is_none() && quic.is_none() {
            return Err(NoTunnel(errors));
        }
        let (carrier, result) = tokio::select! {
            biased;
            result = ended(&mut quic), if quic.is_some() => {
                quic = None;
                (CarrierKind::Quic, result)
            }
            result = ended_of(&mut tcp), if tcp.is_some() => {
                let carrier = tcp.take().map_or(CarrierKind::Http2, |(carrier, _)| carrier);
                (carrier, result)
            }
            () = &mut head_start, if waiting => {
                waiting = false;
                continue;
            }
        };
        match result {
            Ok(tunnel) => {
                note(&|chooser| {
                    if carrier != CarrierKind::Quic && plan.quic {
                        // It lost the race or failed; the prober will find out.
                        chooser.quic_failed(network, Instant::now());
                    }
                    chooser.worked(network, carrier, Instant::now());
                });
                return Ok(tunnel);
            }
            Err(err) => {
                tracing::debug!(carrier = %carrier, error = %err.reason, "carrier failed");
                if err.refused == Some(CloseCode::Elsewhere) {
                    // The carrier led to a gateway, though to one that the agent has a tunnel to.
                    note(&|chooser| chooser.worked(network, carrier, Instant::now()));
                } else if carrier == CarrierKind::Quic {
                    note(&|chooser| chooser.quic_failed(network, Instant::now()));
                }
                let try_another = err.try_another;
                errors.push(err);
                if !try_another {
                    turn = Vec::new().into_iter();
                    if carrier == CarrierKind::Quic && tcp.is_none() {
                        return Err(NoTunnel(errors));
                    }
                }
            }
        }
    }
}

type Dialling = daemon::Task<Result<TunnelHandle, ConnectError>>;

async fn ended(task: &mut Option<Dialling>) -> Result<TunnelHandle, ConnectError> {
    match task {
        Some(task) => join(CarrierKind::Quic, task).await,
        None => std::future::pending().await,
    }
}

async fn ended_of(task: &mut Option<(CarrierKind, Dialling)>) -> Result<TunnelHandle, ConnectError> {
    match task {
        Some((carrier, task)) => join(*carrier, task).await,
        None => std::future::pending().await,
    }
}

async fn join(carrier: CarrierKind, task: &mut Dialling) -> Result<TunnelHandle, ConnectError> {
    task.await.unwrap_or_else(|err| {
        Err(ConnectError {
            carrier,
            reason: err.to_string(),
            retry_after: None,
            try_another: true,
            refused: None,
            replicas: None,
        })
    })
}
