//! Tables of the ledger's file: creates them, and converts those of every earlier version. Called when a file is
//! opened.

use super::groups::{self, Packer};
use super::moments;
use super::notes;
use super::pace::Pace;
use super::people;
use super::tally::{self, Tally};
use super::value::{Fallible, key_id, uint};
use crate::base::limits;
use crate::base::time::{Mono, Unix};
use crate::io::clock::Clock;
use crate::policy::agent::Client;
use crate::policy::row::{Row, RowNames, endpoint_from};
use crate::policy::usage::{Usage, UsageSource};
use rusqlite::types::FromSql;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use std::sync::Arc;
use std::time::Duration;

/// Written into the file (`application_id`): "Toll".
pub const APPLICATION: i32 = 0x546f_6c6c;
/// Written into a copy of a ledger (`application_id`) until it is used as a ledger: "Tolc". Only copies are replaced.
pub const COPY: i32 = 0x546f_6c63;
/// Version of the tables below (`user_version`).
pub(super) const SCHEMA: i64 = 11;

const TABLES: &str = "
CREATE TABLE keys (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, name TEXT NOT NULL, plan TEXT NOT NULL,
    endpoints TEXT NOT NULL, models TEXT, created INTEGER NOT NULL, expires INTEGER, revoked INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE rows (
    number INTEGER PRIMARY KEY, request BLOB NOT NULL, key TEXT NOT NULL, admitted INTEGER NOT NULL,
    model TEXT NOT NULL, target TEXT NOT NULL, endpoint TEXT NOT NULL, stream INTEGER NOT NULL,
    status INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, out INTEGER NOT NULL, source TEXT NOT NULL, cost_nano INTEGER NOT NULL,
    attempts INTEGER NOT NULL, micros INTEGER NOT NULL
) STRICT;
CREATE INDEX rows_admitted ON rows (admitted);
CREATE TABLE days (
    day INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (day, key, model, target)
) STRICT, WITHOUT ROWID;
";

/// From version 1 to 2: secrets that a rotation has replaced, and sums of folded rows.
const SECOND: &str = "
ALTER TABLE keys ADD COLUMN former TEXT NOT NULL DEFAULT '[]';
CREATE TABLE folded (
    day INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (day, key, model, target)
) STRICT, WITHOUT ROWID;
";

/// From version 3 to 4: disabled keys, and keys with limits of their own.
const FOURTH: &str = "
ALTER TABLE keys ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE keys ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';
";

/// From version 5 to 6: keys have groups and labels, sums are separate by group, endpoint and client, and the ledger
/// has a secret of its own; `{}` is replaced by random bytes for it, in hexadecimal.
const SIXTH: &str = "
ALTER TABLE keys ADD COLUMN grp TEXT;
ALTER TABLE keys ADD COLUMN labels TEXT NOT NULL DEFAULT '[]';
DROP VIEW IF EXISTS rows; DROP VIEW IF EXISTS sums; DROP VIEW IF EXISTS parts;
ALTER TABLE days RENAME TO former_days;
ALTER TABLE folded RENAME TO former_folded;
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO secrets VALUES ('attribution', unhex('{}'));
";

/// From version 8 to 9: the changes of the keys have numbers, and keys are indexed by creation and by name. Only the
/// last ten thousand changes are known. `mark` distinguishes a change from another of its number, which can exist if
/// the file was replaced by a copy of itself.
const NINTH: &str = "
CREATE TABLE IF NOT EXISTS changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, mark INTEGER NOT NULL DEFAULT (random())
) STRICT;
CREATE TRIGGER IF NOT EXISTS key_inserted AFTER INSERT ON keys BEGIN
    INSERT INTO changes (key) VALUES (NEW.id);
    DELETE FROM changes WHERE number <= last_insert_rowid() - 10000;
END;
CREATE TRIGGER IF NOT EXISTS key_updated AFTER UPDATE ON keys BEGIN
    INSERT INTO changes (key) SELECT OLD.id WHERE OLD.id <> NEW.id;
    INSERT INTO changes (key) VALUES (NEW.id);
    DELETE FROM changes WHERE number <= last_insert_rowid() - 10000;
END;
CREATE TRIGGER IF NOT EXISTS key_deleted AFTER DELETE ON keys BEGIN
    INSERT INTO changes (key) VALUES (OLD.id);
    DELETE FROM changes WHERE number <= last_insert_rowid() - 10000;
END;
CREATE INDEX IF NOT EXISTS keys_created ON keys (created, id);
CREATE INDEX IF NOT EXISTS keys_name ON keys (name);
";

/// From version 10 to 11: the moment until which the traffic of a key is captured.
const ELEVENTH: &str = "ALTER TABLE keys ADD COLUMN capture INTEGER";

/// Columns of the sums of a day, and of the sums of its folded rows; `{}` is the table's name.
const SUMS: &str = "
CREATE TABLE {} (
    day INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
    group_path TEXT NOT NULL, endpoint TEXT NOT NULL, client TEXT NOT NULL,
    requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (day, key, model, target, group_path, endpoint, client)
) STRICT, WITHOUT ROWID;
";

/// Sums without endpoint: the part that the existing rows do not account for.
const REST: &str = "
INSERT INTO days SELECT f.day, f.key, f.model, f.target, '', '', '',
    f.requests - IFNULL(d.requests, 0), f.uncached_in - IFNULL(d.uncached_in, 0),
    f.cache_read - IFNULL(d.cache_read, 0), f.cache_write - IFNULL(d.cache_write, 0),
    f.out - IFNULL(d.out, 0), f.cost_nano - IFNULL(d.cost_nano, 0)
    FROM former_days AS f LEFT JOIN (SELECT day, key, model, target, SUM(requests) AS requests,
        SUM(uncached_in) AS uncached_in, SUM(cache_read) AS cache_read, SUM(cache_write) AS cache_write,
        SUM(out) AS out, SUM(cost_nano) AS cost_nano FROM days GROUP BY 1, 2, 3, 4) AS d USING (day, key, model, target)
    WHERE f.requests > IFNULL(d.requests, 0);
INSERT INTO folded SELECT day, key, model, target, '', '', '', requests, uncached_in, cache_read, cache_write, out,
    cost_nano FROM former_folded;
DROP TABLE former_days;
DROP TABLE former_folded;
";

/// Statements for the first two versions of the tables, each from the version before; see [`third`] for the next.
const STEPS: [&str; 2] = [TABLES, SECOND];

/// Error text for a file that a later version has written.
pub(super) const NEWER: &str = "this ledger was written by a newer version";
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

/// Creates or converts the tables, and switches the log on. Returns the problem with a file that is not ours. `fresh`
/// is a secret for a ledger that has none, in hexadecimal.
pub(super) fn bring_up(connection: &mut Connection, fresh: &str) -> Fallible<Option<&'static str>> {
    if marks(connection)? != (APPLICATION, SCHEMA) {
        // Two processes may run this concurrently, so only the state found while the others are locked out counts.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let tables: i64 = transaction.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0))?;
        match (marks(&transaction)?, tables) {
            ((APPLICATION, SCHEMA), _) => {}
            ((APPLICATION, newer), _) if newer > SCHEMA => {
                return Ok(Some(NEWER));
            }
            ((APPLICATION, 1..), _) | ((0, 0), 0) => {
                let done = usize::try_from(marks(&transaction)?.1).unwrap_or(0);
                STEPS.iter().skip(done).try_for_each(|step| transaction.execute_batch(step))?;
                if done < 3 {
                    third(&transaction)?;
                }
                if done < 4 {
                    transaction.execute_batch(FOURTH)?;
                }
                if done < 6 {
                    sixth(&transaction, fresh)?;
                }
                // From version 4 to 5 rows may have one more number, from 7 to 8 a trace, from 9 to 10 an agent and its
                // parent, which the views show.
                views(&transaction)?;
                if done < 7 {
                    transaction.execute_batch(notes::TABLES)?;
                }
                if done < 9 {
                    transaction.execute_batch(moments::TABLE)?;
                    transaction.execute_batch(NINTH)?;
                }
                if done < 11 {
                    transaction.execute_batch(ELEVENTH)?;
                }
                if !is_copy(&transaction)? {
                    transaction.pragma_update(None, "application_id", APPLICATION)?;
                }
                transaction.pragma_update(None, "user_version", SCHEMA)?;
            }
            _ => return Ok(Some(STRANGE)),
        }
        transaction.commit()?;
    }
    turn_log_on(connection, limits::STORE_BUSY)?;
    Ok(None)
}

/// From version 2 to 3: rows are in groups, and the sums may lag behind them.
fn third(transaction: &Connection) -> Fallible<()> {
    transaction.execute_batch(groups::TABLE)?;
    let (mut packer, mut rows) = (Packer::default(), Vec::with_capacity(limits::ROWS_PER_COMMIT));
    let mut query = transaction.prepare(
        "SELECT request, key, admitted, model, target, endpoint, stream, status, uncached_in, cache_read,
         cache_write, out, source, cost_nano, attempts, micros FROM rows ORDER BY number",
    )?;
    let mut old = query.query([])?;
    while let Some(row) = old.next()? {
        rows.push(read_row(row)?);
        if rows.len() == limits::ROWS_PER_COMMIT {
            packer.append(transaction, &rows, &mut Pace::of(0))?;
            rows.clear();
        }
    }
    packer.append(transaction, &rows, &mut Pace::of(0))?;
    drop(old);
    drop(query);
    transaction.execute_batch("DROP TABLE rows")?;
    transaction.execute_batch(tally::TABLE)?;
    tally::mark_all(transaction)
}

/// From version 5 to 6: the endpoint of a sum is known only as far as its rows still exist.
fn sixth(transaction: &Connection, fresh: &str) -> Fallible<()> {
    transaction.execute_batch(&SIXTH.replace("{}", fresh))?;
    for name in ["days", "folded"] {
        transaction.execute_batch(&SUMS.replace("{}", name))?;
    }
    let counted = transaction.query_row("SELECT upto FROM counted", [], |row| row.get::<_, i64>(0))?;
    let mut sums = Tally::default();
    groups::each(transaction, "WHERE first <= ?1", [counted], |_, rows| {
        sums.add_sums(&rows);
        true
    })?;
    transaction.execute_batch(people::TABLE)?;
    sums.write(transaction, "days")?;
    transaction.execute_batch(REST)
}

/// Creates the views, again for every version: two for users of SQL, and one for the program itself.
fn views(transaction: &Connection) -> Fallible<()> {
    let old = "DROP VIEW IF EXISTS rows; DROP VIEW IF EXISTS sums; DROP VIEW IF EXISTS parts;
    DROP VIEW IF EXISTS people_parts";
    transaction.execute_batch(old)?;
    transaction.execute_batch(groups::VIEW)?;
    transaction.execute_batch(tally::VIEWS)?;
    transaction.execute_batch(people::VIEW)
}

fn read_row(row: &rusqlite::Row<'_>) -> Fallible<Row> {
    let text = |column: usize| -> Fallible<String> { row.get(column) };
    Ok(Row {
        request: row.get(0)?,
        key: key_id(row, 1)?,
        admitted: Unix(uint(row, 2)?),
        model: text(3)?.into(),
        target: text(4)?.into(),
        endpoint: endpoint_from(&text(5)?),
        stream: row.get(6)?,
        status: row.get(7)?,
        usage: Usage {
            uncached_in: uint(row, 8)?,
            cache_read: uint(row, 9)?,
            cache_write: uint(row, 10)?,
            out: uint(row, 11)?,
            source: UsageSource::from_text(&text(12)?).unwrap_or_default(),
            ..Usage::default()
        },
        cost_nano: uint(row, 13)?,
        attempts: row.get(14)?,
        micros: uint(row, 15)?,
        queued_ms: 0,
        group: Arc::default(),
        client: Client::default(),
        names: RowNames::default(),
        lease: None,
    })
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
    use crate::store::tests::Place;

    #[test]
    fn wait_for_a_reader_of_an_old_file_is_bounded() {
        let place = Place::new("old-reader");
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
