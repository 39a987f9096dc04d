//! Hears which grants are called in, on a connection of its own: one that has subscribed can do nothing else.

use super::{CALLS, Remote, list, named, text};
use crate::base::limits;
use redis::{Client, ConnectionLike, RedisResult};

/// Listens where calls are published.
pub struct Calls(Client);

impl Remote {
    /// The way to hear of calls.
    pub fn calls(&self) -> Calls {
        Calls(self.client.clone())
    }
}

impl Calls {
    /// Tells each call, by the account that it is about, until `is_over`, which is asked a few times a second.
    pub fn listen(&self, is_over: impl Fn() -> bool, tell: impl Fn(String)) {
        while !is_over() {
            // A ledger that cannot be reached grants nothing; its other connection says why.
            let _ = self.listen_once(&is_over, &tell);
            std::thread::sleep(limits::COMMIT_RETRY);
        }
    }

    fn listen_once(&self, is_over: &impl Fn() -> bool, tell: &impl Fn(String)) -> RedisResult<()> {
        let live = named("live:");
        let mut connection = self.0.get_connection_with_timeout(limits::SHARED_CONNECT)?;
        connection.set_write_timeout(Some(limits::SHARED_ANSWER))?;
        connection.set_read_timeout(Some(limits::SHARED_ANSWER))?;
        connection.req_command(redis::cmd("SUBSCRIBE").arg(named(CALLS)))?;
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
