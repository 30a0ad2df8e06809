//! Whose connections and requests a listener serves.

/// Why a connection was closed, or a request refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RejectReason {
    /// The recorder has no descriptor left.
    Descriptors,
    /// The user of the connection has too many silent ones.
    Silent,
    /// The policy did not admit the connection.
    Connection,
    /// The policy did not admit the request.
    Request,
}

/// Decides whose connections and requests a listener serves.
pub trait Policy {
    /// Returns whether a connection of this user is served. Otherwise it is closed before anything
    /// is read from it.
    fn admits_connection(&mut self, uid: u32) -> bool;

    /// Returns whether a request of this user is served. Otherwise it is refused.
    fn admits_request(&mut self, uid: u32) -> bool;

    /// Notes that a connection of this user was closed, or that a request was refused.
    fn rejected(&mut self, uid: u32, why: RejectReason);
}

/// The policy of a recorder that serves everybody who knows its socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdmitAll {
    /// Whether a connection was refused because no descriptor was left for it.
    pub(crate) lacks_descriptors: bool,
}

impl Policy for AdmitAll {
    fn admits_connection(&mut self, _: u32) -> bool {
        true
    }

    fn admits_request(&mut self, _: u32) -> bool {
        true
    }

    fn rejected(&mut self, _: u32, why: RejectReason) {
        self.lacks_descriptors |= why == RejectReason::Descriptors;
    }
}
