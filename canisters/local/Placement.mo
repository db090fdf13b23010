// Canisters that others pay for: on which subnet, with which settings.
import Principal "mo:core/Principal";
import Types "./Types";

module {
  public let management : Types.Management = actor ("aaaaa-aa");

  // Why no canister can be made there: a local network is one subnet, and that has no type.
  public func refused(selection : ?Types.SubnetSelection, subnet : Principal) : ?Text {
    switch selection {
      case (?#Subnet asked) if (asked.subnet != subnet) {
        ?("There is no subnet " # Principal.toText(asked.subnet) # "; this network is the subnet " # Principal.toText(subnet) # ".")
      } else null;
      case (?#Filter { subnet_type = ?kind }) ?("There is no subnet of type " # debug_show kind # "; subnets of this network have no type.");
      case _ null;
    }
  };

  // An older field says the type of subnet alone.
  public func selection(selection : ?Types.SubnetSelection, subnet_type : ?Text) : ?Types.SubnetSelection {
    switch (selection, subnet_type) {
      case (null, ?_) ?#Filter { subnet_type };
      case _ selection;
    }
  };

  let none : Types.Settings = {
    controllers = null;
    compute_allocation = null;
    memory_allocation = null;
    freezing_threshold = null;
    reserved_cycles_limit = null;
    minimum_incoming_canister_call_cycles = null;
    log_visibility = null;
    log_memory_limit = null;
    snapshot_visibility = null;
    status_visibility = null;
    wasm_memory_limit = null;
    wasm_memory_threshold = null;
    environment_variables = null;
  };

  // The payer controls the canister, unless the settings name its controllers.
  public func settings(asked : ?Types.Settings, payer : Principal) : Types.Settings {
    let asked_ = switch asked { case null none; case (?asked) asked };
    if (asked_.controllers != null) return asked_;
    { asked_ with controllers = ?[payer] }
  };
};
