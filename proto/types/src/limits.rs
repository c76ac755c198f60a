//! Every bound on the wire, by name. Over one of these a user sees 429 or 431 with a `Status` that names it; a peer
//! sees its stream or tunnel end with a code.

use std::time::Duration;

/// Bytes of one head on the wire, without a long target. A user with 300 groups has a token of about 40 KB and a
/// request head of the same size; a target comes on top.
pub const HEAD_BYTES: usize = 192 * 1024;
/// Bytes of all header names and values of a user's request or an answer: what HTTP/1.1 and HTTP/2 listeners accept.
pub const HEADER_LIST_BYTES: usize = 128 * 1024;
/// Headers in one head: 300 `Impersonate-Group` lines and what else a client sends. hyper's default is 100.
pub const HEADER_COUNT: usize = 1024;
/// The largest HTTP/2 frame taken from users, in bytes. Together with the next it also decides how many CONTINUATION
/// frames one head may have, see [`user_head_frames`]; clients may send 16 KiB frames whatever is allowed.
pub const USER_FRAME_BYTES: u32 = 64 * 1024;
/// What is announced to users over HTTP/2 as the longest header list. Well above what is taken: the library's own 431
/// names no limit, and it counts 32 bytes more for each header.
pub const USER_HEADER_LIST_BYTES: u32 = 10 * HEADER_LIST_BYTES as u32;
/// The smallest `SETTINGS_MAX_FRAME_SIZE` (RFC 9113 section 6.5.2), which many clients stay at.
const SMALL_FRAME_BYTES: u32 = 16 * 1024;
/// Bytes beside names and values of a head that HPACK takes at the most, without Huffman codes: one byte of kind and
/// two lengths of three bytes for each header (RFC 7541 section 6.2), and as much for the rest.
const HEAD_OVERHEAD_BYTES: u32 = 8 * HEADER_COUNT as u32;
// A head at the limits, in the smallest frames, must arrive, and twice as much, so that the answer is a 431 of ours.
const _: () = assert!(
    user_head_frames(USER_FRAME_BYTES, USER_HEADER_LIST_BYTES) * SMALL_FRAME_BYTES
        >= 2 * (HEADER_LIST_BYTES + PLAIN_TARGET_BYTES) as u32 + HEAD_OVERHEAD_BYTES
);

/// How many frames a head may have before the h2 crate ends the connection (`calc_max_continuation_frames`, against
/// floods of CONTINUATION, CVE-2024-27316): the first, the last, and between them what the longest header list takes in
/// the largest frames, and a quarter more.
const fn user_head_frames(frame: u32, list: u32) -> u32 {
    let full = if list / frame > 1 { list / frame } else { 1 };
    let between = full + full / 4;
    2 + if between > 5 { between } else { 5 }
}
/// Bytes of a request target: an apiserver takes a head of 1 MiB (`net/http.DefaultMaxHeaderBytes`).
pub const TARGET_BYTES: usize = 1024 * 1024;
/// Bytes of a request target that crate http, and so hyper and h2, can express (`http::Uri`). A longer one travels
/// beside the head that these see; over HTTP/2 there is none, and none has a longer path.
pub const PLAIN_TARGET_BYTES: usize = u16::MAX as usize - 1;
/// Bytes of a request's head on the wire, with the longest target.
pub const REQUEST_HEAD_BYTES: usize = HEAD_BYTES + TARGET_BYTES;
/// Requests with a target over [`PLAIN_TARGET_BYTES`] at once: at the gateway in all, and at the agent on one tunnel.
/// Each is held until its answer begins.
pub const LONG_TARGETS: u32 = 64;
/// The same at the gateway from one address.
pub const LONG_TARGETS_PER_ADDRESS: u32 = 8;
/// Bytes of a hello or control message.
pub const CONTROL_BYTES: usize = 64 * 1024;
/// Streams open at once on one tunnel, in both directions together. quinn's default is 100.
pub const STREAMS_PER_TUNNEL: u32 = 8192;
/// Streams open at once for one user at one gateway. Programs that follow a whole cluster have up to a thousand; each
/// that is not read holds memory of gateway and agent.
pub const STREAMS_PER_USER: u32 = 1536;
/// Streams open at once towards one cluster, over all of its tunnels.
pub const STREAMS_PER_CLUSTER: u32 = 16384;
/// What a stream may carry in one direction before its reader has taken anything, in bytes. Small, so that stalled
/// readers cannot hoard.
pub const WINDOW_INITIAL: u64 = 128 * 1024;
/// The largest window of one direction of a stream, in bytes: 1 Gbit/s at 100 ms is 12.5 MB.
pub const WINDOW_MAX: u64 = 16 * 1024 * 1024;
/// The sum of what all windows of one tunnel may have grown beyond [`WINDOW_INITIAL`], in bytes.
pub const WINDOW_GROWTH_PER_TUNNEL: u64 = 64 * 1024 * 1024;
/// The largest chunk handed to a carrier at once, in bytes; one HTTP/2 DATA frame at the most.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// The smallest a chunk becomes when many streams wait for the carrier at once, in bytes.
pub const CHUNK_BYTES_MIN: usize = 16 * 1024;
/// What all streams that wait for the carrier may hand to it in one round together, in bytes. HTTP/2 knows no
/// priorities: a control message or a small answer waits for one frame of each stream that has bulk queued.
pub const ROUND_BYTES: usize = 1024 * 1024;
/// What one stream may have queued in a TCP carrier and not yet sent, in bytes, so that bulk does not delay others.
pub const CARRIER_QUEUE_BYTES: usize = 512 * 1024;
/// Heads of streams that an HTTP/2 carrier may have queued before there is room for them, in bytes: beyond it a stream
/// waits for room before it is open. A peer that gives none would make us keep them for as long as the connection
/// lasts, also when their streams are over.
pub const HEADS_QUEUED_BYTES: usize = 1024 * 1024;
/// Parked streams that the gateway keeps ready for an agent on the HTTP/2 carriers: with the control stream, and the
/// agent's question for news that always waits, as many as h2 makes room for at once. The stock grows where an agent
/// takes them faster.
pub const PARKED_STREAMS: usize = 2;
/// How long the hello may take from the first byte to the last.
pub const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// Heads of streams that the gateway opened that the agent reads at once; each may hold [`HEAD_BYTES`] and a chunk,
/// [`LONG_TARGETS`] of them [`REQUEST_HEAD_BYTES`].
pub const HEADS_AT_AGENT: usize = 512;
/// Heads of streams that the agent opened that the gateway reads at once: its own exchanges. There are many agents.
pub const HEADS_AT_GATEWAY: usize = 16;
/// How long a stream's head may take to arrive once the stream exists.
pub const HEAD_DEADLINE: Duration = Duration::from_secs(10);
/// The same for a head over [`HEAD_BYTES`]: a mebibyte takes 17 s at 500 kbit/s.
pub const LONG_HEAD_DEADLINE: Duration = Duration::from_secs(60);
/// Reset streams that one HTTP/2 connection between hops remembers, about 400 bytes each; reset streams that it has not
/// accepted yet, for all that are open may be cancelled at once and h2's own 20 end the connection; and frames in the
/// connection's life that h2 answers as errors, of which its own 1,024 end it. Without a bound it is open to rapid
/// reset (CVE-2023-44487).
pub const RESET_STREAMS: usize = 64 * 1024;
/// How long frames that crossed a reset on the wire are forgiven. Of more resets than [`RESET_STREAMS`] within that
/// time h2 remembers none, and then each frame that crosses one counts as such an error, for good: the gateway opens
/// those of a tunnel no faster than [`RESETS_AT_ONCE`] allows. On a link that stood still for longer each stream that
/// was cancelled before counts once.
pub const RESET_REMEMBERED: Duration = Duration::from_secs(5);
/// Streams of one tunnel over HTTP/2 that may come to be reset at once, and again within each [`RESET_REMEMBERED`];
/// others are opened when these are forgotten. As many in a second as a gateway can well open and reset: who does that
/// has all others wait for a moment (a second at most where it is one user).
pub const RESETS_AT_ONCE: u64 = 25_000;
/// What is remembered at most: those of before, those that are reset meanwhile, and all that were open behind them.
const _: () = assert!(2 * RESETS_AT_ONCE + STREAMS_PER_TUNNEL as u64 <= RESET_STREAMS as u64);
/// Period of liveness probes while users have streams open, and over QUIC always: of a tunnel that nobody uses the
/// gateway's carrier says a little before that it is there, and the agent asks where that does not come, which is how
/// it finds out about a gateway that was killed and mends what a NAT forgot. It has to come before users give up the
/// tunnel ([`URGENT_PROBES`]), who may have begun to wait just after the last sign.
pub const PROBE_PERIOD: Duration = Duration::from_secs(8);
/// Period of the probes of a tunnel over TCP that nobody uses; the gateway's come a little before. Each of
/// ten thousand costs a processor that has to fetch all that the tunnel is made of.
pub const IDLE_PERIOD: Duration = Duration::from_secs(15);
/// Silence after which a tunnel is dead, if a probe is unanswered for [`ANSWER_WITHIN`]; both ends know within 30 s. Of
/// an idle tunnel over QUIC the carrier's acknowledgements are signs: a session that stands still behind them is known
/// within 80 s, or within this time of the first user that waits for it.
pub const PROBE_DEADLINE: Duration = Duration::from_secs(20);
/// What a peer has at least to answer a probe before its silence alone makes it dead. (Over QUIC [`URGENT_PROBES`] in a
/// row may come to their end before.)
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Silence after which the peer is probed at once, while a user's stream is open. On QUIC, where an agent says
/// something every second as long as one is or was a moment ago, also for that moment.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(2);
/// Period of the questions to a peer in doubt; a round trip where that takes longer.
pub const URGENT_PERIOD: Duration = Duration::from_millis(500);
/// Probes in a row without any sign of life after which a QUIC tunnel is dead: users are told within 10 s (and an idle
/// tunnel is given up within about [`PROBE_DEADLINE`]). No sooner, because open sessions end with it, and a starved
/// machine may say nothing for several seconds; new requests go to another tunnel as soon as an answer is late.
pub const URGENT_PROBES: u32 = 14;
/// QUIC handshakes in progress above which a new peer must first prove its address.
pub const QUIC_RETRY_ABOVE: usize = 64;
/// What a carrier's own flow control lets a peer send before its hello was accepted, in bytes, so that nobody can fill
/// this end's memory without an identity. HTTP/2 begins with 65,535 and knows no less (RFC 9113 section 6.9.2).
pub const CARRIER_WINDOW_HELLO: u64 = 64 * 1024;
/// What it allows on one connection beside [`WINDOW_INITIAL`] for each open stream and what windows have grown, in
/// bytes: heads on their way, and streams that this end does not know yet. So the carrier never decides before the
/// session's credit, and a hostile peer holds about what its streams may hold, and no more.
pub const CARRIER_WINDOW_BASE: u64 = 8 * 1024 * 1024;
/// The carrier's window is made for twice the streams that are open, so that it is ahead of those that come, and looked
/// at again when there are this many more.
pub const CARRIER_WINDOW_STREAMS: u64 = 16;
/// Parked streams at most, when an agent opens many at once.
pub const PARKED_STREAMS_MAX: usize = 256;
/// Stops remembered for streams whose first bytes have not arrived yet.
pub const EARLY_STOPS: usize = 2 * STREAMS_PER_TUNNEL as usize;
/// Control messages waiting to be sent; more means that the peer does not read its control stream.
pub const CONTROL_QUEUE: usize = 4 * STREAMS_PER_TUNNEL as usize;
/// How long closing waits for the peer to have read why.
pub const CLOSE_LINGER: Duration = Duration::from_secs(1);
/// Bytes of a token, a proof of possession around it included. One with 300 groups has about 40 KB.
pub const TOKEN_BYTES: usize = 96 * 1024;
/// Groups of one user; each becomes one header of the request to the apiserver ([`HEADER_COUNT`]).
pub const GROUPS: usize = 800;
