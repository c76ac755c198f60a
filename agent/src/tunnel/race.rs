//! The race between carriers for one tunnel: QUIC gets a head start, then HTTP/2 and WebSocket are tried one after the
//! other beside it. The first one that is up wins. What came of it is noted in [`Chooser`], which plans the next race.

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
    let (mut quic, mut tcp) = (Lane::Idle, Lane::Idle);
    if plan.quic {
        quic = Lane::Dialling(CarrierKind::Quic, dialling(CarrierKind::Quic));
    }
    let mut turn = plan.tcp.into_iter();
    let head_start = tokio::time::sleep(plan.head_start);
    tokio::pin!(head_start);
    let mut waiting = !quic.is_idle();
    loop {
        if tcp.is_idle()
            && (!waiting || quic.is_idle())
            && let Some(carrier) = turn.next()
        {
            tcp = Lane::Dialling(carrier, dialling(carrier));
        }
        if tcp.is_idle() && quic.is_idle() {
            return Err(NoTunnel(errors));
        }
        let (carrier, result) = tokio::select! {
            biased;
            ended = quic.ended() => ended,
            ended = tcp.ended() => ended,
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
                    if carrier == CarrierKind::Quic && tcp.is_idle() {
                        return Err(NoTunnel(errors));
                    }
                }
            }
        }
    }
}

type Dialling = daemon::Task<Result<TunnelHandle, ConnectError>>;

/// One of the two sides of a race, QUIC or TCP: it dials one carrier at a time.
enum Lane {
    /// Nothing is dialled.
    Idle,
    /// This carrier is being dialled. Dropping it ends that.
    Dialling(CarrierKind, Dialling),
}

impl Lane {
    fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Waits until dialling has ended, and is idle then; never completes while it is idle. Cancel-safe.
    async fn ended(&mut self) -> (CarrierKind, Result<TunnelHandle, ConnectError>) {
        let Self::Dialling(carrier, task) = self else { return std::future::pending().await };
        let carrier = *carrier;
        let result = join(carrier, task).await;
        *self = Self::Idle;
        (carrier, result)
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
