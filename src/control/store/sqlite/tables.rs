//! Tables of the ledger's file: creates them, and refuses those of another version. Called when a file is opened.

use super::value::Fallible;
use super::{alert_claims, groups, notes, people, promises, tally, writer_clocks};
use crate::base::limits;
use crate::base::time::Mono;
use crate::io::clock::Clock;
use rusqlite::types::FromSql;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use std::time::Duration;

/// Written into the file (`application_id`): "Toll".
pub const APPLICATION: i32 = 0x546f_6c6c;
/// Written into a copy of a ledger (`application_id`) until it is used as a ledger: "Tolc". Only copies are replaced.
pub const COPY: i32 = 0x546f_6c63;
/// Version of the tables below (`user_version`).
pub(super) const SCHEMA: i64 = 1;

/// Tables of the keys. `changes` numbers the changes of the keys; only the last ten thousand are known. `mark`
/// distinguishes a change from another of its number, which can exist if the file was replaced by a copy of itself.
const KEYS: &str = "
CREATE TABLE keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, name TEXT NOT NULL, plan TEXT NOT NULL,
    endpoints TEXT NOT NULL, models TEXT, created INTEGER NOT NULL, expires INTEGER, revoked INTEGER,
    former TEXT NOT NULL, disabled INTEGER NOT NULL, limits TEXT NOT NULL, grp TEXT, labels TEXT NOT NULL,
    capture INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_created ON keys (created, id);
CREATE INDEX keys_name ON keys (name);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, mark INTEGER NOT NULL DEFAULT (random())
) STRICT;
CREATE TRIGGER key_inserted AFTER INSERT ON keys BEGIN
    INSERT INTO changes (key) VALUES (NEW.id);
    DELETE FROM changes WHERE number <= last_insert_rowid() - 10000;
END;
CREATE TRIGGER key_updated AFTER UPDATE ON keys BEGIN
    INSERT INTO changes (key) SELECT OLD.id WHERE OLD.id <> NEW.id;
    INSERT INTO changes (key) VALUES (NEW.id);
    DELETE FROM changes WHERE number <= last_insert_rowid() - 10000;
END;
CREATE TRIGGER key_deleted AFTER DELETE ON keys BEGIN
    INSERT INTO changes (key) VALUES (OLD.id);
    DELETE FROM changes WHERE number <= last_insert_rowid() - 10000;
END;
";

/// The ledger's own secret, which users are hashed with; `{}` is replaced by random bytes, in hexadecimal.
const SECRET: &str = "
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO secrets VALUES ('attribution', unhex('{}'));
";

/// Sums of a day, and sums of its folded rows; `{}` is the table's name.
const SUMS: &str = "
CREATE TABLE {} (
    day INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    group_path TEXT NOT NULL, endpoint TEXT NOT NULL, client TEXT NOT NULL,
    requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (day, key, model, target, group_path, endpoint, client)
) STRICT, WITHOUT ROWID;
";

/// Error text for a ledger with the tables of another version.
pub(super) const OTHER: &str = "this ledger was written by another version of Tollgate, which has other tables";
/// Error text for a file that no version has written.
pub(super) const STRANGE: &str = "this database is not a ledger";

/// Reads the file's application id, which is that of a ledger for a copy, too, and the version of its tables.
pub(super) fn marks(connection: &Connection) -> Fallible<(i32, i64)> {
    let application = if is_copy(connection)? { APPLICATION } else { number(connection, "application_id")? };
    Ok((application, number(connection, "user_version")?))
}

fn number<T: FromSql>(connection: &Connection, name: &str) -> Fallible<T> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn is_copy(connection: &Connection) -> Fallible<bool> {
    Ok(number::<i32>(connection, "application_id")? == COPY)
}

/// Makes a copy a ledger of its own.
pub(super) fn unmark(connection: &Connection) -> Fallible<()> {
    if is_copy(connection)? { connection.pragma_update(None, "application_id", APPLICATION) } else { Ok(()) }
}

/// Error text for a file that is neither an empty database nor a ledger of this version.
pub(super) fn problem(connection: &Connection) -> Fallible<Option<&'static str>> {
    let tables: i64 = connection.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (marks(connection)?, tables) {
        ((APPLICATION, SCHEMA), _) | ((0, 0), 0) => None,
        ((APPLICATION, 1..), _) => Some(OTHER),
        _ => Some(STRANGE),
    })
}

/// Creates the tables in an empty file, and switches the log on. Returns the problem with a file that is not ours.
/// `secret` is that of a new ledger, in hexadecimal.
pub(super) fn bring_up(connection: &mut Connection, secret: &str) -> Fallible<Option<&'static str>> {
    if marks(connection)? != (APPLICATION, SCHEMA) {
        // Two processes may run this concurrently, so only the state found while the others are locked out counts.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let problem = problem(&transaction)?;
        if problem.is_some() {
            return Ok(problem);
        }
        if marks(&transaction)? != (APPLICATION, SCHEMA) {
            create(&transaction, secret)?;
        }
        transaction.commit()?;
    }
    turn_log_on(connection, limits::STORE_BUSY)?;
    Ok(None)
}

/// Creates the tables, and the views: two for users of SQL, and two for the program itself.
fn create(transaction: &Connection, secret: &str) -> Fallible<()> {
    for name in ["days", "folded"] {
        transaction.execute_batch(&SUMS.replace("{}", name))?;
    }
    transaction.execute_batch(&SECRET.replace("{}", secret))?;
    let tables = [
        KEYS,
        groups::TABLE,
        tally::TABLE,
        people::TABLE,
        notes::TABLES,
        writer_clocks::TABLE,
        alert_claims::TABLES,
        promises::TABLE,
    ];
    tables.iter().try_for_each(|sql| transaction.execute_batch(sql))?;
    let views = [groups::view(), tally::VIEWS.to_string(), people::view()];
    views.iter().try_for_each(|sql| transaction.execute_batch(sql))?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.pragma_update(None, "user_version", SCHEMA)
}

/// Switches to the write-ahead log, a setting that the file keeps. While another process opens the file, SQLite refuses
/// to switch without waiting, so this function waits. While another process reads an old file, SQLite itself waits.
fn turn_log_on(connection: &Connection, wait: Duration) -> Fallible<()> {
    let clock = Clock::new();
    loop {
        let switched = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match switched {
            Ok(mode) if mode == "wal" => return Ok(()),
            Err(error) if error.sqlite_error_code() != Some(ErrorCode::DatabaseBusy) => return Err(error),
            Ok(_) | Err(_) if clock.mono() < Mono(0).after(wait) => std::thread::sleep(wait / 500),
            Ok(_) => return connection.pragma_update(None, "journal_mode", "WAL"),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::TempFolder;

    #[test]
    fn wait_for_a_reader_of_an_old_file_is_bounded() {
        let place = TempFolder::new("old-reader");
        let open = || Connection::open(place.file()).unwrap();
        let reader = open();
        reader.execute_batch("CREATE TABLE t (x); BEGIN").unwrap();
        reader.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap();
        let (wait, clock, second) = (Duration::from_millis(100), Clock::new(), open());
        second.busy_timeout(wait).unwrap();
        let refused = turn_log_on(&second, wait).unwrap_err();
        assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
        assert!(clock.mono() < Mono(5_000_000), "{:?}", clock.mono());
        reader.execute_batch("COMMIT").unwrap();
        turn_log_on(&second, wait).unwrap();
    }
}
