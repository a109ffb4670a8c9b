// The subcommands of `braid data`.
#pragma once

namespace CLI {
class App;
}

namespace braid {}  // namespace braid
