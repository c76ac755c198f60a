//! Codes by which streams and tunnels end, as they are on the wire. A number is never used for something else, because
//! peers may be older or newer; one that is not known is kept as it came.

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// A number that this build does not know.
            Unknown(u32),
        }

        impl $name {
            /// Every known code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            pub fn number(self) -> u32 {
                match self { $(Self::$variant => $number,)* Self::Unknown(number) => number }
            }

            /// The code of a number from the wire.
            pub fn from_number(number: u32) -> Self {
                match number { $($number => Self::$variant,)* other => Self::Unknown(other) }
            }

            /// What it means, in a few words, for logs and errors.
            pub fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* Self::Unknown(_) => "unknown code" }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} ({:#x})", self.text(), self.number())
            }
        }
    };
}

codes! {
    /// Why a stream was reset, or why its reader stopped it. From 0x100 on, so that no number of HTTP/2's own
    /// (RFC 9113 section 7) is taken for one of ours.
    StreamCode {
        /// The user or the caller went away.
        Cancelled = 0x100, "cancelled";
        /// The handle was dropped before the stream had ended.
        Dropped = 0x101, "dropped by its owner";
        /// The reader has what it wants: the exchange is over (a stop).
        NoMore = 0x102, "nothing more is wanted";
        /// A bound of `limits` was reached.
        Limit = 0x103, "a limit was reached";
        /// The head could not be read or came too late.
        BadHead = 0x104, "bad head";
        /// A deadline passed.
        Deadline = 0x105, "deadline passed";
        /// The other leg (user's or apiserver's connection) broke off.
        Upstream = 0x106, "the connection behind the stream broke off";
        /// The session was ended: a right was withdrawn, a token expired, or an operator ended it.
        Unauthorised = 0x107, "no longer authorised";
        /// The tunnel is draining and takes no new streams; try another.
        Draining = 0x108, "draining";
        /// No role of this name is served.
        UnknownRole = 0x109, "no such role";
        /// A fault of ours.
        Internal = 0x10a, "internal error";
        /// This replica has no tunnel of the cluster, or none that takes the request; another one may have.
        NotHere = 0x10b, "no tunnel of the cluster here";
        /// The tunnel behind the stream was lost: what the stream asked for may have been done.
        TunnelLost = 0x10c, "the tunnel behind the stream was lost";
    }
}

impl StreamCode {
    /// Whether an acceptor resets a stream with it only before any role has seen the stream's head: what the stream
    /// asked for was not done, and may be asked for again.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Limit | Self::Draining | Self::BadHead | Self::UnknownRole | Self::NotHere)
    }

    /// Whether a refusal may pass: another tunnel, or the same one later, may take the stream.
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Limit | Self::Draining | Self::NotHere)
    }
}

codes! {
    /// Why a tunnel was closed.
    CloseCode {
        /// Orderly end: the program stops.
        Shutdown = 0x200, "shut down";
        /// The drain is complete.
        Drained = 0x201, "drained";
        /// The peer sent what the wire format does not allow.
        Protocol = 0x202, "protocol error";
        /// No version in common.
        Version = 0x203, "no version in common";
        /// The credential is missing, invalid, expired or revoked.
        Unauthorised = 0x204, "not authorised";
        /// No sign of life.
        Dead = 0x205, "no sign of life";
        /// The carrier connection broke.
        Lost = 0x206, "connection lost";
        /// Too many tunnels or agents; try again later.
        Overloaded = 0x207, "overloaded";
        /// A newer tunnel of the same agent took its place.
        Replaced = 0x208, "replaced by a newer tunnel";
        /// The agent leaves this carrier for a better one.
        Carrier = 0x209, "moving to another carrier";
        /// A fault of ours.
        Internal = 0x20a, "internal error";
        /// The hello took too long.
        Timeout = 0x20b, "hello took too long";
        /// The cluster's resource was deleted, or made again as another one: an agent stops asking
        /// until it has another certificate.
        Deleted = 0x20c, "the cluster's resource was deleted";
        /// The gateway does not serve agents of this version any more.
        Outdated = 0x20d, "the agent's version is no longer served";
        /// Another replica of the gateway should have this tunnel: the agent has one to this replica already, or others
        /// have far fewer.
        Elsewhere = 0x20e, "better at another replica of the gateway";
    }
}
