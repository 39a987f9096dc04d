//! Hears which grants are called in, on a connection of its own: one that has subscribed can do nothing else.

use super::{CALLS, Remote, named};
use crate::base::limits;
use redis::{Client, RedisResult};

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
        let mut connection = self.0.get_connection_with_timeout(limits::SHARED_CONNECT)?;
        connection.set_write_timeout(Some(limits::SHARED_ANSWER))?;
        let mut heard = connection.as_pubsub();
        heard.set_read_timeout(Some(limits::SHARED_ANSWER))?;
        heard.subscribe(named(CALLS))?;
        heard.set_read_timeout(Some(limits::KEYS_LOOK))?;
        while !is_over() {
            match heard.get_message() {
                Ok(call) => {
                    let name: String = call.get_payload()?;
                    tell(name.strip_prefix(&named("live:")).unwrap_or_default().to_string());
                }
                Err(error) if error.is_timeout() || super::is_interrupted(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
