//! Which node of a network a client works at, and which nodes can be reached.
//!
//! Publishers spread over the first half of the nodes, all other clients over the second, so that
//! received messages have crossed the network. With one node all clients work at it.
//!
//! Bounds: one entry for each node. Must never know: the work of clients.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::tally::lock;

/// A node that no client has been connected to for so long is gone.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default)]
struct ConnectionState {
    connections: usize,
    /// Since when there is none, after there was one.
    disconnected_since: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct NodeConnections(Mutex<Vec<ConnectionState>>);

impl NodeConnections {
    pub(crate) fn new(nodes: usize) -> Arc<Self> {
        assert!(nodes > 0, "there is a node to work on");
        Arc::new(Self(Mutex::new(vec![ConnectionState::default(); nodes])))
    }

    fn nodes(&self) -> usize {
        lock(&self.0).len()
    }

    pub(crate) fn node_for_publisher(&self, index: usize) -> usize {
        index % self.nodes().div_ceil(2)
    }

    pub(crate) fn node_for_receiver(&self, index: usize) -> usize {
        let nodes = self.nodes();
        nodes - 1 - index % (nodes / 2).max(1)
    }

    pub(crate) fn node_for_relay_peer(&self, index: usize) -> usize {
        let nodes = self.nodes();
        let half = (nodes / 2).max(1);
        nodes - half + index % half
    }

    pub(crate) fn node_for_store_client(&self) -> usize {
        self.nodes() - 1
    }

    /// Counts a client as connected to `node` until the guard is dropped.
    pub(crate) fn register(self: &Arc<Self>, node: usize) -> ConnectionGuard {
        if let Some(state) = lock(&self.0).get_mut(node) {
            state.connections += 1;
            state.disconnected_since = None;
        }
        ConnectionGuard { places: self.clone(), node }
    }

    /// Whether any client is connected to `node`.
    pub(crate) fn is_reached(&self, node: usize) -> bool {
        lock(&self.0).get(node).is_some_and(|state| state.connections > 0)
    }

    /// Whether every node was reached and no client has been connected to it for [`GONE_AFTER`]. A
    /// node without clients does not count.
    pub(crate) fn all_gone(&self) -> bool {
        let all = lock(&self.0);
        let mut known =
            all.iter().filter(|state| state.connections > 0 || state.disconnected_since.is_some());
        let gone = |state: &ConnectionState| {
            state.disconnected_since.is_some_and(|at| at.elapsed() > GONE_AFTER)
        };
        known.clone().next().is_some() && known.all(gone)
    }
}

/// A client connection to a node, counted by [`NodeConnections::register`] until this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard {
    places: Arc<NodeConnections>,
    node: usize,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Some(state) = lock(&self.places.0).get_mut(self.node) {
            state.connections = state.connections.saturating_sub(1);
            if state.connections == 0 {
                state.disconnected_since = Some(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_and_receivers_are_at_different_halves_of_a_network() {
        let places = NodeConnections::new(8);
        let all = |place: &dyn Fn(usize) -> usize| (0..6).map(place).collect::<Vec<_>>();
        assert_eq!(all(&|index| places.node_for_publisher(index)), [0, 1, 2, 3, 0, 1]);
        assert_eq!(all(&|index| places.node_for_receiver(index)), [7, 6, 5, 4, 7, 6]);
        assert_eq!(all(&|index| places.node_for_relay_peer(index)), [4, 5, 6, 7, 4, 5]);
        let places = NodeConnections::new(3);
        assert_eq!(all(&|index| places.node_for_publisher(index)), [0, 1, 0, 1, 0, 1]);
        assert_eq!(all(&|index| places.node_for_receiver(index)), [2; 6]);
        let places = NodeConnections::new(1);
        assert_eq!(
            places.node_for_publisher(3)
                + places.node_for_receiver(3)
                + places.node_for_relay_peer(3),
            0
        );
    }

    #[test]
    fn a_node_is_reached_while_a_client_is_connected() {
        let places = NodeConnections::new(2);
        assert!(!places.is_reached(0) && !places.all_gone());
        let first = places.register(0);
        let second = places.register(0);
        drop(first);
        assert!(places.is_reached(0));
        drop(second);
        assert!(!places.is_reached(0) && !places.all_gone(), "it may come back");
    }
}
