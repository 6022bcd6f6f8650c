//! The protocol of Redis and Valkey (RESP 2): function calls, and their answers.

use std::io::Write;

use anyhow::{Context, Result, bail, ensure};

use crate::{
    calls::{Call, Outcome, VOTES_PER_PHONE_MAX},
    http::push_number,
    load::Wire,
    orders::Order,
    server::SetupConnection,
};

/// An answer of the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Integer(i64),
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

/// A reply, and the bytes that it took.
struct Parsed {
    reply: Reply,
    bytes: usize,
}

/// The reply at the beginning of these bytes; none: it has not arrived whole.
fn parse(received: &[u8]) -> Result<Option<Parsed>> {
    let Some(line_end) = memchr::memmem::find(received, b"\r\n") else {
        return Ok(None);
    };
    let line = std::str::from_utf8(&received[..line_end]).context("a reply that is no text")?;
    let mut bytes = line_end + 2;
    let kind = line.as_bytes().first().copied().unwrap_or_default();
    let rest = line.get(1..).unwrap_or_default();
    let number = || rest.parse::<i64>().with_context(|| format!("the reply {line:?}"));
    let reply = match kind {
        b':' => Reply::Integer(number()?),
        b'+' => Reply::Text(rest.to_owned()),
        b'-' => Reply::Error(rest.to_owned()),
        b'$' => {
            let length = usize::try_from(number()?).context("a reply without a text")?;
            let Some(text) = received.get(bytes..bytes + length + 2) else {
                return Ok(None);
            };
            bytes += length + 2;
            Reply::Text(String::from_utf8_lossy(&text[..length]).into_owned())
        }
        b'*' => {
            let mut list = Vec::new();
            for _ in 0..number()? {
                let Some(member) = parse(&received[bytes..])? else {
                    return Ok(None);
                };
                bytes += member.bytes;
                list.push(member.reply);
            }
            Reply::List(list)
        }
        _ => bail!("the reply {line:?} is none"),
    };
    Ok(Some(Parsed { reply, bytes }))
}

/// Appends one text of a command.
fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'$');
    push_number(out, text.len() as i64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number as a text of a command.
fn push_integer(out: &mut Vec<u8>, value: i64) {
    push_text(out, itoa::Buffer::new().format(value).as_bytes());
}

/// Appends the beginning of a command of this many texts.
fn push_count(out: &mut Vec<u8>, texts: i64) {
    out.push(b'*');
    push_number(out, texts);
    out.extend_from_slice(b"\r\n");
}

/// The language of one connection to Redis or Valkey.
#[derive(Default)]
pub struct RespWire {
    key: Vec<u8>,
}

impl RespWire {
    /// Appends a key of a letter and a number.
    fn push_key(&mut self, out: &mut Vec<u8>, prefix: &str, number: i64) {
        self.key.clear();
        self.key.extend_from_slice(prefix.as_bytes());
        push_number(&mut self.key, number);
        push_text(out, &self.key);
    }

    /// Appends the beginning of a function call with this many keys and arguments.
    fn push_function(out: &mut Vec<u8>, name: &str, keys: i64, args: i64) {
        push_count(out, 3 + keys + args);
        push_text(out, b"FCALL");
        push_text(out, name.as_bytes());
        push_integer(out, keys);
    }

    /// Keys are those of warehouse, district and customer. The lines follow as arguments, three numbers each.
    fn push_order(&mut self, order: &Order, out: &mut Vec<u8>) {
        Self::push_function(out, "place_order", 3, 1 + 3 * order.lines().len() as i64);
        let warehouse = i64::from(order.warehouse);
        let district = warehouse * 100 + i64::from(order.district);
        self.push_key(out, "warehouse:", warehouse);
        self.push_key(out, "district:", district);
        self.push_key(out, "customer:", district * 10_000 + i64::from(order.customer));
        push_integer(out, warehouse);
        for line in order.lines() {
            push_integer(out, line.item.into());
            push_integer(out, line.supplier.into());
            push_integer(out, line.quantity.into());
        }
    }

    fn push_call(&mut self, call: &Call, out: &mut Vec<u8>) {
        match *call {
            Call::Vote { phone, contestant } => {
                Self::push_function(out, "vote", 1, 2);
                self.push_key(out, "v:", phone);
                push_integer(out, contestant.into());
                push_integer(out, VOTES_PER_PHONE_MAX);
            }
            Call::Transfer { payer, payee, amount } => {
                Self::push_function(out, "transfer", 2, 1);
                self.push_key(out, "a:", payer);
                self.push_key(out, "a:", payee);
                push_integer(out, amount);
            }
            Call::Book(booking) => {
                Self::push_function(out, "account_update", 4, 1);
                self.push_key(out, "account:", booking.account.into());
                self.push_key(out, "teller:", booking.teller.into());
                self.push_key(out, "branch:", booking.branch.into());
                self.push_key(out, "history:", booking.branch.into());
                push_integer(out, booking.delta);
            }
            Call::Order(ref order) => self.push_order(order, out),
        }
    }
}

impl Wire for RespWire {
    fn ask(&mut self, calls: &[Call], out: &mut Vec<u8>) {
        calls.iter().for_each(|call| self.push_call(call, out));
    }

    fn read(&mut self, received: &[u8], outcomes: &mut Vec<Outcome>) -> Result<usize> {
        let mut used = 0;
        while let Some(parsed) = parse(&received[used..])? {
            outcomes.push(match parsed.reply {
                Reply::Text(text) if text == "rejected" => Outcome::Rejected,
                Reply::Text(_) | Reply::Integer(_) | Reply::List(_) => Outcome::Done,
                Reply::Error(error) => bail!("a call was answered with {error}"),
            });
            used += parsed.bytes;
        }
        Ok(used)
    }
}

/// A connection that is not measured.
pub struct RespClient(SetupConnection);

impl RespClient {
    pub fn connect(port: u16) -> Result<Self> {
        Ok(Self(SetupConnection::open(port)?))
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    /// The connection failed, or the server refused the command.
    pub fn command(&mut self, texts: &[&str]) -> Result<Reply> {
        let mut request = Vec::new();
        push_count(&mut request, texts.len() as i64);
        texts.iter().for_each(|text| push_text(&mut request, text.as_bytes()));
        self.0.stream.write_all(&request)?;
        loop {
            if let Some(parsed) = parse(&self.0.received)? {
                self.0.received.drain(..parsed.bytes);
                return match parsed.reply {
                    Reply::Error(error) => bail!("{} was answered with {error}", texts.join(" ").escape_debug()),
                    reply => Ok(reply),
                };
            }
            ensure!(self.0.receive()?, "the server closed the connection");
        }
    }

    /// Calls a function without keys, whose answer is a list of numbers.
    ///
    /// # Errors
    /// The connection failed, the server refused the call, or the answer is another.
    pub fn numbers(&mut self, function: &str, args: &[i64]) -> Result<Vec<i64>> {
        let args: Vec<_> = args.iter().map(i64::to_string).collect();
        let mut texts = vec!["FCALL", function, "0"];
        texts.extend(args.iter().map(String::as_str));
        let Reply::List(list) = self.command(&texts)? else {
            bail!("{function} was not answered with a list");
        };
        let number = |reply: &Reply| match reply {
            Reply::Integer(number) => Ok(*number),
            // A sum may have more digits than a number of Lua.
            Reply::Text(text) => text.parse().with_context(|| format!("the number {text:?}")),
            other => bail!("{function} was answered with {other:?}"),
        };
        list.iter().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_however_they_are_cut() {
        let bytes = b":0\r\n$8\r\nrejected\r\n*2\r\n:-5\r\n:7\r\n";
        let mut wire = RespWire::default();
        let (mut outcomes, mut received) = (Vec::new(), Vec::new());
        for byte in bytes {
            received.push(*byte);
            let used = wire.read(&received, &mut outcomes).expect("replies");
            received.drain(..used);
        }
        assert_eq!(outcomes, [Outcome::Done, Outcome::Rejected, Outcome::Done]);
        assert!(wire.read(b"-ERR no\r\n", &mut outcomes).is_err());
        assert!(wire.read(b"?\r\n", &mut outcomes).is_err());
    }

    #[test]
    fn calls_name_their_keys() {
        let call = Call::Transfer {
            payer: 4,
            payee: 15,
            amount: 9,
        };
        let mut out = Vec::new();
        RespWire::default().ask(&[call], &mut out);
        let text = String::from_utf8(out).expect("text");
        assert_eq!(
            text,
            "*6\r\n$5\r\nFCALL\r\n$8\r\ntransfer\r\n$1\r\n2\r\n$3\r\na:4\r\n$4\r\na:15\r\n$1\r\n9\r\n"
        );
    }
}
