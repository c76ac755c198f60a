//! One suite over all carriers: what a tunnel promises, whoever opens the stream. Sockets and TLS are real.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[path = "conformance/cancel.rs"]
mod cancel;
#[path = "conformance/carriers.rs"]
mod carriers;
#[path = "conformance/credit.rs"]
mod credit;
#[path = "conformance/data.rs"]
mod data;
#[path = "conformance/dial.rs"]
mod dial;
#[path = "conformance/endings.rs"]
mod endings;
#[path = "conformance/load.rs"]
mod load;
#[path = "conformance/measure.rs"]
#[allow(clippy::print_stdout, reason = "what it measures")]
mod measure;
#[path = "conformance/tunnel.rs"]
mod tunnel;

/// Each case on each carrier, opened by the gateway and opened by the agent.
macro_rules! conformance {
    ($($module:ident :: $case:ident),* $(,)?) => {
        conformance!(@carrier memory, Memory, [$($module :: $case),*]);
        conformance!(@carrier quic, Quic, [$($module :: $case),*]);
        conformance!(@carrier h2, Http2, [$($module :: $case),*]);
        conformance!(@carrier websocket, WebSocket, [$($module :: $case),*]);
    };
    (@carrier $name:ident, $kind:ident, [$($module:ident :: $case:ident),*]) => {
        mod $name {
            mod gateway_opens {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::carriers::run(tunnel::transport::CarrierKind::$kind, true, crate::$module::$case).await;
                })*
            }
            mod agent_opens {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::carriers::run(tunnel::transport::CarrierKind::$kind, false, crate::$module::$case).await;
                })*
            }
        }
    };
}

conformance!(
    endings::finish,
    endings::empty_directions,
    endings::reset_reaches_both_directions,
    endings::stop_ends_one_direction_with_its_code,
    endings::half_close,
    endings::early_answer_is_read_whole,
    endings::finished_request_outlives_its_opener,
    endings::dropped_send_half_is_a_reset,
    endings::dropped_receive_half_is_a_stop,
    endings::stop_wakes_a_writer_that_waits_for_its_source,
    endings::truncated_at_the_last_byte,
    endings::torn_connection_fails_all_at_once,
    cancel::at_every_poll,
    cancel::ten_thousand_requests,
    credit::stalled_reader_holds_its_window_only,
    credit::stalled_reader_beside_twenty,
    credit::sixteen_stalled_readers_and_bulk,
    credit::heads_larger_than_the_window,
    load::five_thousand_streams,
    load::thousand_streams_of_random_chunks,
    load::bulk_both_ways,
    tunnel::drain_is_seen_and_the_gateway_closes,
    tunnel::close_code_reaches_the_peer,
    tunnel::silent_stream_delays_no_other,
    tunnel::too_many_streams,
);
