//! Idle connections, per provider. Last in, first out: the most recent one is used, the others age out.

use crate::gateway::ids::ProviderId;

/// Idle connections by provider index.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    by_provider: Vec<Vec<ProviderId>>,
}

impl Idle {
    /// The connection used last, if there is one.
    pub(crate) fn take(&mut self, provider: usize) -> Option<ProviderId> {
        self.by_provider.get_mut(provider)?.pop()
    }

    /// Keeps a connection. Returns the oldest one, to be closed, if there are now more than `max`.
    pub(crate) fn put(&mut self, provider: usize, id: ProviderId, max: usize) -> Option<ProviderId> {
        if self.by_provider.len() <= provider {
            self.by_provider.resize_with(provider + 1, Vec::new);
        }
        let list = &mut self.by_provider[provider];
        list.push(id);
        (list.len() > max).then(|| list.remove(0))
    }

    /// The oldest connection of the provider with most of them.
    pub(crate) fn oldest(&self) -> Option<ProviderId> {
        self.by_provider.iter().max_by_key(|list| list.len())?.first().copied()
    }

    /// Forgets a connection that has closed.
    pub(crate) fn forget(&mut self, provider: usize, id: ProviderId) {
        if let Some(list) = self.by_provider.get_mut(provider) {
            list.retain(|other| *other != id);
        }
    }

    /// Takes out all idle connections.
    pub(crate) fn drain(&mut self) -> Vec<ProviderId> {
        self.by_provider.iter_mut().flat_map(std::mem::take).collect()
    }

    /// Number of idle connections.
    pub(crate) fn len(&self) -> usize {
        self.by_provider.iter().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_in_is_first_out_and_the_oldest_is_closed() {
        let mut idle = Idle::default();
        let id = |slot| ProviderId::new(slot, 0);
        assert_eq!(idle.put(1, id(1), 2), None);
        assert_eq!(idle.put(1, id(2), 2), None);
        assert_eq!(idle.put(1, id(3), 2), Some(id(1)));
        assert_eq!(idle.put(0, id(4), 2), None);
        assert_eq!(idle.oldest(), Some(id(2)));
        assert_eq!((idle.take(1), idle.take(0), idle.len()), (Some(id(3)), Some(id(4)), 1));
        idle.forget(1, id(2));
        assert_eq!(idle.take(1), None);
    }
}
