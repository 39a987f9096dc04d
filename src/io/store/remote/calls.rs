//! Hears which grants are called in, on a connection of its own: one that has subscribed can do nothing else.

use super::nodes::Nodes;
use super::values::{list, text};
use super::{CALLS, Remote};
use crate::base::limits;
use redis::{ConnectionLike, RedisResult};

/// Listens where calls are published.
pub struct Calls(Nodes);

impl Remote {
    /// The way to hear of calls.
    pub fn calls(&self) -> Calls {
        Calls(self.nodes.clone())
    }
}

impl Calls {
    /// Tells each call, by the account that it is about, until `is_over`, which is asked a few times a second.
    pub fn listen(mut self, is_over: impl Fn() -> bool, tell: impl Fn(String)) {
        while !is_over() {
            // A ledger that cannot be reached grants nothing; its other connection says why.
            let _ = self.listen_once(&is_over, &tell);
            self.0.go_on();
            std::thread::sleep(limits::COMMIT_RETRY);
        }
    }

    fn listen_once(&mut self, is_over: &impl Fn() -> bool, tell: &impl Fn(String)) -> RedisResult<()> {
        let (live, mut connection) = ([self.0.prefix(), "live:"].concat(), self.0.connect()?);
        if self.0.is_cluster() {
            // What is published anywhere in a cluster is heard at every node of it.
            self.0.learn(&connection.req_command(redis::cmd("CLUSTER").arg("SLOTS"))?);
        }
        connection.req_command(redis::cmd("SUBSCRIBE").arg([self.0.prefix(), CALLS].concat()))?;
        connection.set_read_timeout(Some(limits::KEYS_LOOK))?;
        while !is_over() {
            match connection.recv_response() {
                // "message", the channel, and what was published there.
                Ok(call) => {
                    let account = list(&call).get(2).and_then(text).and_then(|name| name.strip_prefix(&*live));
                    account.into_iter().for_each(|account| tell(account.to_string()));
                }
                Err(error) if error.is_timeout() || super::is_interrupted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
