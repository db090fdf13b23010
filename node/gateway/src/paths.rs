//! Which paths of the state tree a read_state may ask for (interface specification, "Request: Read
//! state").
//!
//! A request is refused as a whole if one of its paths has no permitted form or if its sender may
//! not see it. Some values below a permitted prefix are hidden from some endpoints
//! (`/subnet/<id>/canister_ranges` of a subnet that is not the root, `metrics` and `node` of a
//! subnet that does not hold the effective canister); a prefix that would reveal one is replaced by
//! the paths below it that may be seen. The tree of this node names its own subnet only, so that is
//! the subnet such a replacement speaks of.

use envelope::{auth::AuthenticatedSender, effective::Effective};
use ic_principal::Principal;
use state::RequestId;
use thiserror::Error;

use crate::api::{CertifiedView, RequestFacts};

/// Labels of one path, from the root of the state tree down.
type Path = Vec<Vec<u8>>;

/// The endpoint a read_state came in at.
pub(crate) struct Scope<'a> {
    pub(crate) effective: &'a Effective,
    /// Whether it is the deprecated v2 endpoint.
    pub(crate) v2: bool,
    pub(crate) own_subnet: &'a Principal,
    pub(crate) root_subnet: &'a Principal,
    /// Whether the effective canister id is in this subnet's ranges; true for the subnet form.
    pub(crate) hosted: bool,
}

/// Why a read_state is refused: its paths as [`show`] has them, names cut to 64 characters.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum PathError {
    #[error(
        "the path {path} cannot be requested at this endpoint; see \"Request: Read state\" of the \
         interface specification"
    )]
    NotAPath { path: String },
    #[error("the path {path} concerns another canister than the effective canister id {effective}")]
    OtherCanister { path: String, effective: Principal },
    #[error("canister {canister_id} is in no canister range of this subnet")]
    NotHosted { canister_id: Principal },
    #[error("paths below /request_status must all name the same request id")]
    SeveralRequests,
    #[error("paths below /canister_ranges must all name the same subnet")]
    SeveralSubnets,
    #[error(
        "the status of request {id:?} may only be read by its sender, at the effective id the \
         request was sent to"
    )]
    NotYourRequest { id: RequestId },
    #[error(
        "the custom section \"{name}\" is private; only controllers of the canister may read it"
    )]
    PrivateMetadata { name: String },
}

impl PathError {
    /// Whether the sender lacks authority: 403 rather than 400.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::NotYourRequest { .. } | Self::PrivateMetadata { .. })
    }
}

/// A path for error messages: labels that are graphic text as text, others in hexadecimal, cut.
fn show(path: &[Vec<u8>]) -> String {
    let mut shown = String::new();
    for label in path.iter().take(8) {
        shown.push('/');
        match std::str::from_utf8(label) {
            Ok(text) if text.chars().all(|letter| letter.is_ascii_graphic()) => {
                shown.extend(text.chars().take(64))
            }
            _ => {
                shown.push_str("0x");
                shown.push_str(&hex::encode(label.get(..32).unwrap_or(label)));
            }
        }
    }
    if shown.is_empty() { "/ (the whole tree)".to_owned() } else { shown }
}

/// The paths to certify for a read_state.
pub(crate) fn permitted(
    paths: Vec<Path>,
    scope: &Scope<'_>,
    sender: &AuthenticatedSender,
    view: &dyn CertifiedView,
) -> Result<Vec<Path>, PathError> {
    let mut request: Option<RequestId> = None;
    let mut ranges_of: Option<Vec<u8>> = None;
    let mut permitted = Vec::with_capacity(paths.len());
    for path in paths {
        let labels: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
        let not_a_path = || PathError::NotAPath { path: show(&path) };
        match labels.as_slice() {
            [b"time"] | [b"api_boundary_nodes"] | [b"api_boundary_nodes", _] => {}
            [b"api_boundary_nodes", _, b"domain" | b"ipv4_address" | b"ipv6_address"] => {}
            [b"canister_ranges", subnet] if matches!(scope.effective, Effective::Subnet(_)) => {
                if *ranges_of.get_or_insert_with(|| subnet.to_vec()) != *subnet {
                    return Err(PathError::SeveralSubnets);
                }
            }
            [b"subnet", below @ ..] => {
                scope.subnet(below, &path, &mut permitted)?;
                continue;
            }
            [b"request_status", id]
            | [
                b"request_status",
                id,
                b"status" | b"reply" | b"reject_code" | b"reject_message" | b"error_code",
            ] => {
                let id = RequestId((*id).try_into().map_err(|_| not_a_path())?);
                if *request.get_or_insert(id) != id {
                    return Err(PathError::SeveralRequests);
                }
            }
            [b"canister", canister, below @ ..] => {
                scope.canister(canister, below, &path, sender, view)?
            }
            _ => return Err(not_a_path()),
        }
        permitted.push(path);
    }
    // Calls that create a canister may have been sent to any id, `aaaaa-aa` included, and their
    // senders read the status there.
    let is_status = |path: &Path| path.first().is_some_and(|label| label == b"request_status");
    if let Effective::Canister(canister_id) = *scope.effective
        && !scope.hosted
        && !permitted.iter().all(is_status)
    {
        return Err(PathError::NotHosted { canister_id });
    }
    if let Some(id) = request
        && let Some(facts) = view.request(&id)
        && !scope.may_see(&facts, sender)
    {
        return Err(PathError::NotYourRequest { id });
    }
    Ok(permitted)
}

impl Scope<'_> {
    fn may_see(&self, facts: &RequestFacts, sender: &AuthenticatedSender) -> bool {
        let targeted = sender.may_target(&facts.canister_id);
        // A call that makes a canister is asked about wherever it was sent, and one envelope may be
        // sent to many places.
        let anywhere = facts.effective_canister_id == Principal::management_canister();
        let here = anywhere || facts.effective_canister_id == self.effective.id();
        facts.sender == sender.sender && here && targeted
    }

    /// Whether `/subnet/<subnet>/<name>` may be seen, as a path or below a prefix.
    fn reveals(&self, subnet: &[u8], name: &[u8]) -> bool {
        match name {
            b"canister_ranges" => self.v2 || subnet == self.root_subnet.as_slice(),
            b"metrics" | b"node" => match self.effective {
                Effective::Subnet(id) => id.as_slice() == subnet,
                Effective::Canister(_) => self.hosted && subnet == self.own_subnet.as_slice(),
            },
            _ => true,
        }
    }

    fn subnet(
        &self,
        below: &[&[u8]],
        path: &Path,
        permitted: &mut Vec<Path>,
    ) -> Result<(), PathError> {
        const CHILDREN: [&[u8]; 5] =
            [b"canister_ranges", b"metrics", b"node", b"public_key", b"type"];
        let own = self.own_subnet.as_slice();
        let expand = |subnet: &[u8], permitted: &mut Vec<Path>| {
            let hidden = CHILDREN.iter().any(|name| !self.reveals(subnet, name));
            if !hidden {
                permitted.push(path.clone());
                return;
            }
            let seen = CHILDREN.iter().filter(|name| self.reveals(subnet, name));
            permitted
                .extend(seen.map(|name| vec![b"subnet".to_vec(), subnet.to_vec(), name.to_vec()]));
        };
        match below {
            [] => expand(own, permitted),
            [subnet] => expand(subnet, permitted),
            [_, b"public_key" | b"type"] => permitted.push(path.clone()),
            // May always be asked for, and is left out of the certificate where it is hidden.
            [subnet, b"node"] | [subnet, b"node", _] | [subnet, b"node", _, b"public_key"] => {
                if self.reveals(subnet, b"node") {
                    permitted.push(path.clone());
                }
            }
            [subnet, b"canister_ranges"] if self.reveals(subnet, b"canister_ranges") => {
                permitted.push(path.clone())
            }
            [subnet, b"metrics"] if matches!(self.effective, Effective::Subnet(id) if id.as_slice() == *subnet) => {
                permitted.push(path.clone())
            }
            _ => return Err(PathError::NotAPath { path: show(path) }),
        }
        Ok(())
    }

    fn canister(
        &self,
        canister: &[u8],
        below: &[&[u8]],
        path: &Path,
        sender: &AuthenticatedSender,
        view: &dyn CertifiedView,
    ) -> Result<(), PathError> {
        let Effective::Canister(effective) = self.effective else {
            return Err(PathError::NotAPath { path: show(path) });
        };
        if canister != effective.as_slice() {
            return Err(PathError::OtherCanister { path: show(path), effective: *effective });
        }
        if !self.hosted {
            return Err(PathError::NotHosted { canister_id: *effective });
        }
        match below {
            [
                b"module_hash"
                | b"controllers"
                | b"canister_creation_timestamp"
                | b"last_install_timestamp",
            ] => Ok(()),
            [b"metadata", name] => {
                let name = std::str::from_utf8(name)
                    .map_err(|_| PathError::NotAPath { path: show(path) })?;
                if view.may_read_metadata(effective, name, &sender.sender) {
                    Ok(())
                } else {
                    Err(PathError::PrivateMetadata { name: name.chars().take(64).collect() })
                }
            }
            _ => Err(PathError::NotAPath { path: show(path) }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct View(Option<RequestFacts>);

    impl CertifiedView for View {
        fn time(&self) -> state::Time {
            state::Time(0)
        }
        fn certificate(&self, _: &[Path]) -> Vec<u8> {
            Vec::new()
        }
        fn request(&self, id: &RequestId) -> Option<RequestFacts> {
            self.0.filter(|_| id.0 == [7; 32])
        }
        fn may_read_metadata(&self, _: &Principal, name: &str, sender: &Principal) -> bool {
            name != "secret" || *sender == id(50)
        }
        fn outcome(&self, _: &RequestId) -> Option<crate::Outcome> {
            None
        }
        fn public_metadata(&self, _: &Principal, _: &str) -> crate::PublicMetadata {
            crate::PublicMetadata::Absent
        }
    }

    fn id(byte: u8) -> Principal {
        Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, byte, 1, 1])
    }

    fn path(text: &str) -> Path {
        text.split('/')
            .skip(1)
            .filter(|label| !label.is_empty())
            .map(|label| match label {
                "OWN" => id(100).as_slice().to_vec(),
                "ROOT" => id(101).as_slice().to_vec(),
                "ME" => id(1).as_slice().to_vec(),
                "OTHER" => id(2).as_slice().to_vec(),
                "RID" => vec![7; 32],
                "RID2" => vec![8; 32],
                "BAD" => vec![0xff],
                text => text.as_bytes().to_vec(),
            })
            .collect()
    }

    fn ask(
        effective: Effective,
        v2: bool,
        root: u8,
        hosted: bool,
        texts: &[&str],
        facts: Option<RequestFacts>,
        sender: u8,
    ) -> Result<Vec<Path>, PathError> {
        let (own, root) = (id(100), id(root));
        let scope =
            Scope { effective: &effective, v2, own_subnet: &own, root_subnet: &root, hosted };
        let sender = AuthenticatedSender { sender: id(sender), targets: None, sender_info: None };
        permitted(texts.iter().map(|text| path(text)).collect(), &scope, &sender, &View(facts))
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one sequence of steps")]
    fn the_forms_of_the_specification_and_no_others() {
        let canister = Effective::Canister(id(1));
        let subnet = Effective::Subnet(id(100));
        // (path, canister v2, canister v3, subnet v2, subnet v3), in a subnet that is not the root.
        let table = [
            ("/time", [true, true, true, true]),
            ("/", [false; 4]),
            ("/time/x", [false; 4]),
            ("/api_boundary_nodes", [true; 4]),
            ("/api_boundary_nodes/n/domain", [true; 4]),
            ("/api_boundary_nodes/n/else", [false; 4]),
            ("/canister_ranges", [false; 4]),
            ("/canister_ranges/OWN", [false, false, true, true]),
            ("/canister_ranges/OWN/ME", [false; 4]),
            ("/subnet", [true; 4]),
            ("/subnet/OWN", [true; 4]),
            ("/subnet/OTHER", [true; 4]),
            ("/subnet/OWN/public_key", [true; 4]),
            ("/subnet/OWN/type", [true; 4]),
            ("/subnet/OWN/node", [true; 4]),
            ("/subnet/OWN/node/n", [true; 4]),
            ("/subnet/OWN/node/n/public_key", [true; 4]),
            ("/subnet/OWN/node/n/else", [false; 4]),
            ("/subnet/OWN/canister_ranges", [true, false, true, false]),
            ("/subnet/ROOT/canister_ranges", [true; 4]),
            ("/subnet/OWN/metrics", [false, false, true, true]),
            ("/subnet/OTHER/metrics", [false; 4]),
            ("/request_status/RID", [true; 4]),
            ("/request_status/RID/reply", [true; 4]),
            ("/request_status/RID/else", [false; 4]),
            ("/request_status/short", [false; 4]),
            ("/request_status", [false; 4]),
            ("/canister", [false; 4]),
            ("/canister/ME", [false; 4]),
            ("/canister/ME/module_hash", [true, true, false, false]),
            ("/canister/ME/controllers", [true, true, false, false]),
            ("/canister/ME/canister_creation_timestamp", [true, true, false, false]),
            ("/canister/ME/last_install_timestamp", [true, true, false, false]),
            ("/canister/ME/certified_data", [false; 4]),
            ("/canister/ME/metadata", [false; 4]),
            ("/canister/ME/metadata/candid:service", [true, true, false, false]),
            ("/canister/ME/metadata/secret", [false; 4]),
            ("/canister/ME/metadata/BAD", [false; 4]),
            ("/canister/OTHER/module_hash", [false; 4]),
            ("/unknown", [false; 4]),
        ];
        for (text, expected) in table {
            let asked = [(canister, true), (canister, false), (subnet, true), (subnet, false)]
                .map(|(effective, v2)| ask(effective, v2, 101, true, &[text], None, 1).is_ok());
            assert_eq!(asked, expected, "{text}");
        }
        assert!(
            ask(canister, false, 101, true, &["/canister/ME/metadata/secret"], None, 50).is_ok()
        );
        assert_eq!(
            ask(canister, false, 101, false, &["/canister/ME/module_hash"], None, 1),
            Err(PathError::NotHosted { canister_id: id(1) })
        );
        assert_eq!(
            ask(
                canister,
                false,
                101,
                true,
                &["/request_status/RID", "/request_status/RID2"],
                None,
                1
            ),
            Err(PathError::SeveralRequests)
        );
        assert_eq!(
            ask(
                subnet,
                false,
                101,
                true,
                &["/canister_ranges/OWN", "/canister_ranges/OTHER"],
                None,
                1
            ),
            Err(PathError::SeveralSubnets)
        );
    }

    #[test]
    fn prefixes_do_not_reveal_what_is_hidden() {
        let shown = |effective, v2, root, hosted, text: &str| -> Vec<String> {
            let names =
                [(id(100).as_slice().to_vec(), "OWN"), (id(2).as_slice().to_vec(), "OTHER")];
            let label = |label: &Vec<u8>| {
                names.iter().find(|(id, _)| id == label).map_or_else(
                    || String::from_utf8(label.clone()).unwrap(),
                    |(_, name)| (*name).to_owned(),
                )
            };
            ask(effective, v2, root, hosted, &[text], None, 1)
                .unwrap()
                .iter()
                .map(|path| path.iter().map(label).collect::<Vec<_>>().join("/"))
                .collect()
        };
        let canister = Effective::Canister(id(1));
        // The root subnet asked for a canister of its own hides nothing.
        assert_eq!(shown(canister, false, 100, true, "/subnet"), ["subnet"]);
        assert_eq!(shown(canister, false, 100, true, "/subnet/OWN"), ["subnet/OWN"]);
        // Elsewhere v3 hides the ranges, v2 does not.
        assert_eq!(shown(canister, true, 101, true, "/subnet/OWN"), ["subnet/OWN"]);
        assert_eq!(
            shown(canister, false, 101, true, "/subnet"),
            ["subnet/OWN/metrics", "subnet/OWN/node", "subnet/OWN/public_key", "subnet/OWN/type"]
        );
        // Nothing is read at an id that is not this subnet's, but for statuses of calls that made
        // canisters.
        let foreign = |paths: &[&str]| ask(canister, false, 100, false, paths, None, 1);
        for path in ["/time", "/subnet/OWN"] {
            let refused = Err(PathError::NotHosted { canister_id: id(1) });
            assert_eq!(foreign(&[path]), refused, "{path}");
        }
        assert!(foreign(&["/request_status/RID", "/subnet/OWN"]).is_err());
        assert!(foreign(&["/request_status/RID"]).is_ok());
        let management = Effective::Canister(Principal::management_canister());
        assert_eq!(
            ask(management, false, 100, false, &["/time"], None, 1),
            Err(PathError::NotHosted { canister_id: Principal::management_canister() })
        );
        assert!(ask(management, false, 100, false, &["/request_status/RID"], None, 1).is_ok());
        assert_eq!(
            shown(canister, false, 100, true, "/subnet/OTHER"),
            ["subnet/OTHER/public_key", "subnet/OTHER/type"]
        );
        assert_eq!(
            shown(Effective::Subnet(id(100)), false, 100, true, "/subnet/OWN"),
            ["subnet/OWN"]
        );
    }

    #[test]
    fn a_status_is_for_its_sender_at_its_place() {
        let facts = RequestFacts {
            sender: id(60),
            effective_canister_id: id(1),
            canister_id: id(1),
            terminal: true,
        };
        let of = |facts: RequestFacts, effective, sender| {
            ask(effective, false, 100, true, &["/request_status/RID"], Some(facts), sender)
        };
        let ask = |effective, sender| of(facts, effective, sender);
        let refused = Err(PathError::NotYourRequest { id: RequestId([7; 32]) });
        assert!(ask(Effective::Canister(id(1)), 60).is_ok());
        assert_eq!(ask(Effective::Canister(id(1)), 61), refused);
        assert_eq!(ask(Effective::Canister(id(2)), 60), refused);
        assert_eq!(ask(Effective::Subnet(id(100)), 60), refused);

        // Of a call that makes a canister: its sender may ask anywhere.
        let made =
            RequestFacts { effective_canister_id: Principal::management_canister(), ..facts };
        let ask = |effective, sender| of(made, effective, sender);
        for effective in [id(1), id(2), Principal::management_canister()].map(Effective::Canister) {
            assert!(ask(effective, 60).is_ok());
            assert_eq!(ask(effective, 61), refused);
        }
        assert!(ask(Effective::Subnet(id(100)), 60).is_ok());
    }
}
