//! Receives calls for grants, on a separate connection, because a subscribed connection can do nothing else.

use super::nodes::Nodes;
use super::resp::{LinkError, RedisCommand, Value, list, text};
use super::{CALLS, Remote};
use crate::store::bounds;

/// Subscriber to calls.
pub struct Calls(Nodes);

impl Remote {
    /// Returns a subscriber to calls.
    pub fn calls(&self) -> Calls {
        Calls(self.server.nodes.clone())
    }
}

impl Calls {
    /// Passes the account of each call to `tell`, until `is_over`, which is checked a few times a second.
    pub fn listen(mut self, is_over: impl Fn() -> bool, tell: impl Fn(String)) {
        while !is_over() {
            // An unreachable ledger makes no grants; its other connection reports the reason.
            let _ = self.listen_once(&is_over, &tell);
            self.0.go_on();
            std::thread::sleep(bounds::COMMIT_RETRY);
        }
    }

    fn listen_once(&mut self, is_over: &impl Fn() -> bool, tell: &impl Fn(String)) -> Result<(), LinkError> {
        let (live, mut connection) = ([self.0.prefix(), "live:"].concat(), self.0.connect()?);
        if self.0.is_cluster() {
            // In a cluster, every node receives all published messages.
            connection.ask(&[RedisCommand::new("CLUSTER SLOTS")])?.iter().for_each(|nodes| self.0.learn(nodes));
        }
        let mut subscribe = RedisCommand::new("SUBSCRIBE");
        subscribe.arg([self.0.prefix(), CALLS].concat());
        if let Some(error) = connection.ask(&[subscribe])?.into_iter().find_map(Value::error) {
            return Err(error);
        }
        while !is_over() {
            match connection.answer(bounds::KEYS_LOOK) {
                // "message", the channel, and the published text.
                Ok(call) => {
                    let account = list(&call).get(2).and_then(text).and_then(|name| name.strip_prefix(&*live));
                    account.into_iter().for_each(|account| tell(account.to_string()));
                }
                Err(error) if error.is_timeout() || error.is_interrupted() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
