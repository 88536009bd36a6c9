// The signaling of a peer in Rust without crates: peer offer|answer SERVER ORIGIN TOPIC
// It reads the own description from a line of standard input, and prints the other one.
// An application has crates for HTTP with TLS and for JSON. Here, `{:?}` encodes printable text, and `string` decodes.
use std::env::args;
use std::io::{stdin, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;

/// Send a request and return the JSON of its response.
fn call(method: &str, path: &str, body: &str) -> Result<String> {
    let (server, origin) = (args().nth(2).unwrap(), args().nth(3).unwrap());
    let address = server.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address)?;
    let head = format!("Host: {address}\r\nOrigin: {origin}\r\nConnection: close\r\nContent-Length: {}", body.len());
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n{body}")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.split_once("\r\n\r\n") {
        Some((head, json)) if head.starts_with("HTTP/1.1 200 ") => Ok(json.to_string()),
        _ => Err(Error::new(ErrorKind::Other, response)),
    }
}

/// Return the first string of this name.
fn string(json: &str, name: &str) -> Option<String> {
    let mut rest = json.split_once(&format!("\"{name}\":\""))?.1.chars();
    let mut text = String::new();
    loop {
        text.push(match rest.next()? {
            '"' => return Some(text),
            '\\' => match rest.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => char::from_u32(u32::from_str_radix(&rest.by_ref().take(4).collect::<String>(), 16).ok()?)?,
                each => each,
            },
            each => each,
        });
    }
}

fn main() -> Result<()> {
    let (is_offer, topic, mut own) = (args().nth(1).unwrap() == "offer", args().nth(4).unwrap(), String::new());
    if is_offer {
        stdin().read_line(&mut own)?;
        let offer = format!("{{\"info\":\"Rust\",\"offer\":{:?}}}", own.trim_end());
        let code = string(&call("POST", &format!("/{topic}/offer"), &offer)?, "code").unwrap();
        let poll = format!("{{\"code\":\"{code}\",\"side\":\"offerer\",\"wait\":45}}");
        let answer = loop {
            if let Some(answer) = string(&call("POST", "/poll", &poll)?, "answer") { break answer; }
        };
        println!("{answer}");
    } else {
        let (code, offer) = loop {
            let listing = call("GET", &format!("/{topic}/sessions?limit=1&wait=45"), "")?;
            if let (Some(code), Some(offer)) = (string(&listing, "code"), string(&listing, "offer")) { break (code, offer); }
        };
        println!("{offer}");
        stdin().read_line(&mut own)?;
        let answer = format!("{{\"code\":\"{code}\",\"side\":\"answerer\",\"answer\":{:?}}}", own.trim_end());
        call("POST", "/answer", &answer)?;
    }
    Ok(())
}
